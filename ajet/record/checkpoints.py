"""checkpoints/step-N/: what a run continues from.

Invariant: a folder named `step-N` is complete. It is written aside, every file is put on the disk, `state.json` with
the size and the digest of each file goes last, and only then does the folder get its name; an interruption at any byte
leaves a hidden folder that the next run removes. Older ones go only after the new one is complete. What a run goes on
from has the digests that were written (`sound`, `at`); a checkpoint of an earlier version, without digests, its sizes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.record import writing
from ajet.record.bounded_json import LONGEST_LINE, read_json
from ajet.record.files import sync_folder, sync_tree, write_atomically
from ajet.record.held_out import Measurement
from ajet.schema.errors import UserError

NAME = re.compile(r"step-(\d+)")
STATE = "state.json"
OWN = "digest"
"""The key in it for the digest of all its others."""
READERS = 4
"""Files that are digested at the same time."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint. `path` is a model folder in Hugging Face layout (plus optimizer and RNG)."""

    path: Path
    step: int
    score: float | None
    """Higher is better; None when nothing was measured at this step, or too little of it counts."""
    state: dict[str, Any] = field(default_factory=dict)
    """The loop's own: task frontier, last validation."""
    measured: Measurement | None = None
    """What the score sums up; None in checkpoints of earlier versions."""
    digests: dict[str, str] = field(default_factory=dict, repr=False)
    """Of each file, as it was written; none in a checkpoint of an earlier version."""

    def better_than(self, other: Checkpoint) -> bool:
        """Whether its measurement, or else its score, takes the place of an earlier one's as the best."""
        if self.measured is not None and other.measured is not None:
            return self.measured.beats(other.measured)
        assert self.score is not None and other.score is not None, "only what has a score is compared"
        return self.score >= other.score

    def damage(self) -> str:
        """Which of its files are not what was written, in words; empty for a sound one. Reads all of it."""
        now = _digests(self.path, self.digests)
        wrong = [name for name, digest in self.digests.items() if now[name] != digest]
        return f"{', '.join(wrong)}: not the bytes that were written" if wrong else ""


def checkpoints_folder(run: Path, base: str | None) -> Path:
    """Where the checkpoints of the run in `run` lie. `base`: its `trainer_common.checkpoint_base_dir`."""
    if not base:
        return run / "checkpoints"
    home = base == "~" or base.startswith("~/")  # ~SOMEBODY raises where there is nobody of that name
    return (Path(base).expanduser() if home else Path(base)).absolute() / run.name


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in `path`; None when it is not there or not whole."""
    try:
        content = read_json(path / STATE, LONGEST_LINE)
        whole = all((path / name).stat().st_size == size for name, size in content["files"].items())
        step, score, state = content["step"], content["score"], content["state"]
        sound = isinstance(step, int) and isinstance(score, (int, float, type(None))) and isinstance(state, dict)
        digests = dict(content.get("digests") or {})
        whole = whole and sound and content.get(OWN) in (None, _own_digest(content))
        measured = Measurement.from_json(content.get("measured"))
        return Checkpoint(path, step, score, state, measured, digests) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Checkpoints:
    """The checkpoints of one run; only the holder of its lock may call `save` and `clean`."""

    def __init__(self, folder: Path, *, keep: int = 2, keep_best: bool = True) -> None:
        self.folder = folder
        self._keep, self._keep_best = max(1, keep), keep_best
        self.damaged: dict[Path, str] = {}
        """Folders that `sound` or `at` passed over, with the reason."""

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, by step."""
        found = [read_checkpoint(path) for path in self._named()]
        return sorted((checkpoint for checkpoint in found if checkpoint), key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """The one of the highest step."""
        return next(reversed(self.all()), None)

    def sound(self) -> Checkpoint | None:
        """The latest whose files are all what was written; None when there is none at all. Raises UserError when there
        are some and every one is damaged."""
        for path in sorted(self._named(), key=_step, reverse=True):
            found = read_checkpoint(path)
            why = found.damage() if found else f"{STATE} is damaged, or a file is missing or of another size"
            if found is not None and not why:
                return found
            self.damaged[path] = why
        if self.damaged:
            raise _unsound(self.damaged)
        return None

    def set_damaged_aside(self) -> None:
        """What was passed over is kept under another name, so that nothing takes it for a checkpoint any more."""
        for path in self.damaged:
            number = 1
            while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
                number += 1
            os.replace(path, aside)
        self.damaged.clear()

    def best(self) -> Checkpoint | None:
        """The best that was measured; None when none was. A later one takes the place of an earlier one only where it
        is better by more than chance explains. Scores without the measurement behind them are compared as they are."""
        best: Checkpoint | None = None
        for checkpoint in self.all():
            if checkpoint.score is not None and (best is None or checkpoint.better_than(best)):
                best = checkpoint
        return best

    def at(self, path: Path) -> Checkpoint:
        """The checkpoint in `path`, or the latest sound one of the run folder `path`. Raises UserError when there is
        none, or when it is damaged."""
        found = read_checkpoint(path)
        if found is not None and (why := found.damage()):
            raise _unsound({path: why})
        for folder in (path / "checkpoints", path):
            if found is None:
                those = Checkpoints(folder)
                found = those.sound()
                if folder.resolve() == self.folder.resolve():
                    self.damaged |= {self.folder / damaged.name: why for damaged, why in those.damaged.items()}
        if found is None:
            raise UserError(
                "There is no complete checkpoint to resume from.",
                where=str(path),
                expected="a folder such as launcher_record/NAME/checkpoints/step-20, or a run's folder",
                do="give --resume the folder of a checkpoint, or leave it out to resume the run of this YAML",
            )
        return found

    def save(
        self,
        step: int,
        write: Callable[[Path], None],
        state: dict[str, Any],
        score: float | None = None,
        *,
        measured: Measurement | None = None,
    ) -> Path:
        """Let `write` fill an empty folder and make it the checkpoint of `step`; then prune. `measured`: what its
        weights came to, and then the score.

        Raises UserError when the disk is full, whatever `write` raised for it; earlier checkpoints are untouched.
        """
        content: dict[str, Any] = {"step": step, "score": score, "state": state}
        if measured is not None:
            content |= {"score": measured.score, "measured": measured.as_json()}
        aside = self.folder / f".step-{step}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        latest = self.latest()
        kept = f"the run is safe up to step {latest.step}" if latest else "there is no earlier checkpoint"
        try:
            with writing.explained(f"the checkpoint of step {step}", self.folder, kept=kept):
                self.folder.mkdir(parents=True, exist_ok=True)
                aside.mkdir()
                write(aside)
                self._complete(aside, content)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        path = self._publish(aside, step)
        self._prune()
        return path

    def clean(self) -> None:
        """Undo what an interrupted `save` left: a replaced checkpoint gets its name back, partial ones go."""
        for path in self.folder.glob(".step-*.replaced"):
            named = self.folder / path.name[1:].removesuffix(".replaced")
            if named.exists():
                shutil.rmtree(path)
            else:
                os.replace(path, named)
        for path in [*self.folder.glob(".step-*.partial"), *self.folder.glob(".step-*.pruned")]:
            shutil.rmtree(path)

    def _named(self) -> list[Path]:
        return [path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name)]

    def _complete(self, aside: Path, content: dict[str, Any]) -> None:
        """Digests are taken while the disk is waited for, of bytes that still lie in memory."""
        files = {str(path.relative_to(aside)): path.stat().st_size for path in aside.rglob("*") if path.is_file()}
        with ThreadPoolExecutor(READERS) as pool:
            digests = _begun(pool, aside, files)
            sync_tree(aside)
            taken = {name: future.result() for name, future in digests.items()}
        whole = json.loads(json.dumps({**content, "saved": time.time(), "files": files, "digests": taken}))
        write_atomically(aside / STATE, json.dumps({**whole, OWN: _own_digest(whole)}, indent=1) + "\n", sync=True)

    def _publish(self, aside: Path, step: int) -> Path:
        path, replaced = self.folder / f"step-{step}", self.folder / f".step-{step}.replaced"
        if path.exists():
            os.replace(path, replaced)
        os.replace(aside, path)
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)
        return path

    def _prune(self) -> None:
        """Keep the newest few and the best."""
        known, best = self.all(), self.best() if self._keep_best else None
        for checkpoint in known[: -self._keep]:
            if best is None or checkpoint.step != best.step:
                going = self.folder / f".{checkpoint.path.name}.pruned"
                os.replace(checkpoint.path, going)
                shutil.rmtree(going)


def _step(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def _own_digest(content: dict[str, Any]) -> str:
    others = {name: value for name, value in content.items() if name != OWN}
    return hashlib.blake2b(json.dumps(others, sort_keys=True).encode(), digest_size=16).hexdigest()


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    with ThreadPoolExecutor(READERS) as pool:
        return {name: future.result() for name, future in _begun(pool, folder, names).items()}


def _begun(pool: ThreadPoolExecutor, folder: Path, names: Iterable[str]) -> dict[str, Future[str]]:
    return {name: pool.submit(_digest, folder / name) for name in names}


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    window = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(window):
            digest.update(window[:count])
    return digest.hexdigest()


def _unsound(damaged: dict[Path, str]) -> UserError:
    rows = "; ".join(f"{path.name}: {why}" for path, why in damaged.items())
    return UserError(
        f"There is no sound checkpoint to continue from: {rows}.",
        where=", ".join(map(str, damaged)),
        expected="a checkpoint whose files are what ajet wrote",
        do="restore the folder from a copy, name an earlier one with --resume, or begin anew with --fresh",
    )
