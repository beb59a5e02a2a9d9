"""`python scripts/same_as COMMIT`: whether this working tree trains to the same bits as that commit.

Invariant: the exit code is 0 only if every setting ran with both versions and no byte differs; 1 where one does or did
not run; 2 for a wrong call. The worktree of the commit and all results are gone at the end, however it ends (`--keep`
keeps the results). Bits differ between processors, so nothing is stored: both versions run here, now.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from same_as_parts.compare import differences
from same_as_parts.runs import Failed, results
from same_as_parts.settings import NAMES

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 8
"""Differences of one setting."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="same_as", description="Whether this working tree trains to the same bits as COMMIT."
    )
    parser.add_argument("commit", metavar="COMMIT")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=NAMES, default=NAMES, help=", ".join(NAMES))
    parser.add_argument(
        "--ignore", action="append", metavar="PATTERN", default=[],
        help="A regular expression of places (such as ^[0-9]+/proof/) that were meant to change; may be repeated.",
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="DIR", help="A new folder for both versions' results.")
    given = parser.parse_args(arguments)
    commit = _git("rev-parse", "--verify", "--quiet", f"{given.commit}^{{commit}}")
    if commit.returncode:
        parser.error(f"there is no commit {given.commit}")
    if given.keep is not None and given.keep.exists():
        parser.error(f"{given.keep} exists already")
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="ajet-same-as-") as folder:
        kept = given.keep.absolute() if given.keep else Path(folder) / "results"
        kept.mkdir(parents=True)
        with worktree(commit.stdout.strip(), Path(folder) / "code") as code:
            unlike = [name for name in given.only if not _same(name, code, Path(folder), kept, tuple(given.ignore))]
    if unlike:
        print(f"Not the same as {given.commit}: {', '.join(unlike)}.")
        return 1
    print(f"The same as {given.commit}: {', '.join(given.only)}.")
    return 0


@contextmanager
def worktree(commit: str, place: Path) -> Iterator[Path]:
    """The code of a commit, until the end of the block."""
    added = _git("worktree", "add", "--detach", "--force", str(place), commit)
    if added.returncode:
        raise SystemExit(added.stderr)
    try:
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))
        _git("worktree", "prune")


def _same(name: str, code: Path, folder: Path, kept: Path, ignored: tuple[str, ...]) -> bool:
    began = time.monotonic()
    try:
        sides = [
            results(name, version, folder / "place", kept / f"{name}.{side}")
            for side, version in (("before", code), ("now", ROOT))
        ]
    except (Failed, subprocess.TimeoutExpired) as problem:
        print(f"{name}: it did not run\n{problem}", flush=True)
        return False
    if not all(list(side.rglob("*.safetensors")) and list(side.rglob("metrics.jsonl")) for side in sides):
        print(f"{name}: it left no weights or no metrics to compare", flush=True)
        return False
    found = list(islice(differences(*sides, ignored), 1000))
    verdict = "same" if not found else f"{len(found)}{'+' if len(found) == 1000 else ''} differences"
    print(f"{name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    for each in found[:SHOWN]:
        print(f"  {each}")
    if len(found) > SHOWN:
        print(f"  and {len(found) - SHOWN} more", flush=True)
    return not found


def _end(number: int, frame: object) -> None:
    """Leave the blocks that clean up."""
    raise SystemExit(128 + number)


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
