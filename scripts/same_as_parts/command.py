"""`python scripts/same_as COMMIT`: compares how this working tree trains with how that commit does, bit for bit.

Exit code: 0 if every setting ran with both versions and nothing differs; 1 if something differs or did not run; 2 for a
wrong call. Only a setting of `--allow-missing` may be refused by both versions, as a sandbox is on some machines.
Bits differ between processors, so nothing is stored: both versions run here, one after the other, in the same folder.
The worktree of the commit and all results are removed at the end, however it ends.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from same_as_parts.checkout import PARTS, Checkout, RunError
from same_as_parts.compare import Results, find_differences, parse_results
from same_as_parts.settings import NAMES, SETTINGS

ROOT = PARTS.parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    args = parse_arguments(arguments)
    if args.list:
        print("\n".join(f"{name:18} {setting.summary}" for name, setting in SETTINGS.items()))
        return 0
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="ajet-same-as-") as temporary:
        folder = Path(temporary).resolve()
        with add_worktree(args.commit, folder / "code") as code:
            sides = [Checkout("before", code, folder / "before", [ROOT]), Checkout("now", ROOT, folder / "now", [code])]
            print(f"{'setting':18} {'verdict':58} {'seconds':>7} {'cpu':>5}", flush=True)
            unequal = [name for name in args.only if not compare_setting(name, sides, folder, args)]
    print(f"Not equal to {args.name}: {', '.join(unequal)}." if unequal else f"All equal to {args.name}.")
    return 1 if unequal else 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exits with 2 if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="same_as", description="Compare how this working tree trains with how COMMIT does, bit for bit."
    )
    parser.add_argument("name", nargs="?", metavar="COMMIT")
    parser.add_argument("--only", metavar="A,B,C", type=_split, default=list(NAMES), help="These settings alone.")
    parser.add_argument("--list", action="store_true", help="Print the settings and what each covers.")
    parser.add_argument(
        "--allow-missing", metavar="A,B,C", type=_split, default=[],
        help="Settings that may be refused by both versions, such as isolation-sandbox where there is no sandbox.",
    )  # fmt: skip
    parser.add_argument(
        "--ignore", action="append", metavar="PATTERN", default=[],
        help="A regular expression of metrics or fields (such as ^proof/) that were meant to change; may be repeated.",
    )  # fmt: skip
    args = parser.parse_args(arguments)
    unknown = [name for name in (*args.only, *args.allow_missing) if name not in SETTINGS]
    if unknown:
        parser.error(f"no setting {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if args.list:
        return args
    if args.name is None:
        parser.error("COMMIT is missing, such as HEAD~1")
    found = _git("rev-parse", "--verify", "--quiet", f"{args.name}^{{commit}}")
    if found.returncode:
        parser.error(f"there is no commit {args.name}")
    args.commit = found.stdout.strip()
    return args


@contextmanager
def add_worktree(commit: str, place: Path) -> Iterator[Path]:
    """Check a commit out until the end of the block."""
    added = _git("worktree", "add", "--detach", "--force", str(place), commit)
    if added.returncode:
        raise SystemExit(added.stderr)
    try:
        yield place
    finally:
        _git("worktree", "remove", "--force", str(place))
        _git("worktree", "prune")


def compare_setting(name: str, sides: Sequence[Checkout], folder: Path, args: argparse.Namespace) -> bool:
    """Run a setting with both versions, print its line, and return True if they are equal or may be missing."""
    began, used = time.monotonic(), _cpu_seconds()
    ran: list[Results] = []
    failed: list[tuple[str, RunError]] = []
    for side in sides:
        try:
            ran.append(run_setting(name, side, folder))
        except RunError as problem:
            failed.append((side.name, problem))
    refused = len(failed) == 2 and all(problem.code == 2 for _, problem in failed)
    different = [] if failed else list(find_differences(*ran, args.ignore))
    if refused:
        verdict = "NOT COMPARED: both versions refuse to run it"
    elif failed:
        verdict = f"did not run: {' and '.join(side for side, _ in failed)}"
    else:
        verdict = f"{len(different)} of {len(ran[0])} values differ" if different else f"equal ({len(ran[0])} values)"
    print(f"{name:18} {verdict:58} {time.monotonic() - began:7.0f} {_cpu_seconds() - used:5.0f}")
    if different:
        print(f"    {different[0]}")
    for side, problem in failed:
        print(f"    {side}: {problem}".rstrip().replace("\n", "\n    "))
    sys.stdout.flush()
    return refused and name in args.allow_missing or not (failed or different)


def run_setting(name: str, side: Checkout, folder: Path) -> Results:
    """Run a setting with one version and read what it left. Raises RunError."""
    setting, place = SETTINGS[name], folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(PARTS / "project", place)
    side.clear_modules()
    try:
        left = setting.procedure(side, place, setting.overrides)
        results = parse_results(side.run([str(PARTS / "reader.py"), str(left)], place))
    except RunError:
        side.check_other_modules()
        raise
    side.check_modules()
    require_results(name, results)
    return results


def require_results(name: str, results: Results) -> None:
    """Raises RunError unless there are steps, weights and, where there was a rollout, episodes to compare."""
    places = [place for _, place, _ in results]
    wanted = {"grad_norm": "metrics of a step", "safetensors": "weights"}
    if name not in ("sft", "dpo", "verl"):
        wanted["logprobs"] = "tokens of episodes"
    lacking = [what for word, what in wanted.items() if not any(word in place for place in places)]
    if lacking:
        raise RunError(f"it left no {' and no '.join(lacking)}")


def _split(names: str) -> list[str]:
    return names.split(",")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end(number: int, frame: object) -> None:
    """Leave the blocks that clean up."""
    raise SystemExit(128 + number)


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
