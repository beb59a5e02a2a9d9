"""checkpoints/step-N/: what a run continues from.

Invariant: a folder named `step-N` is complete. It is written aside, every file is put on the disk, `state.json` with
the size of each file goes last, and only then does the folder get its name; an interruption at any byte leaves a
hidden folder that the next run removes. Older ones go only after the new one is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.record import full_disk
from ajet.record.bounded_json import LONGEST_LINE, read_json
from ajet.record.files import sync_folder, sync_tree, write_atomically
from ajet.record.held_out import Measurement
from ajet.schema.errors import UserError

NAME = re.compile(r"step-(\d+)")
STATE = "state.json"


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

    def better_than(self, other: Checkpoint) -> bool:
        """Whether its measurement, or else its score, takes the place of an earlier one's as the best."""
        if self.measured is not None and other.measured is not None:
            return self.measured.beats(other.measured)
        assert self.score is not None and other.score is not None, "only what has a score is compared"
        return self.score >= other.score


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
        measured = Measurement.from_json(content.get("measured"))
        return Checkpoint(path, step, score, state, measured) if whole and sound else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Checkpoints:
    """The checkpoints of one run; only the holder of its lock may call `save` and `clean`."""

    def __init__(self, folder: Path, *, keep: int = 2, keep_best: bool = True) -> None:
        self.folder = folder
        self._keep, self._keep_best = max(1, keep), keep_best

    def all(self) -> list[Checkpoint]:
        """Complete checkpoints, by step."""
        found = [read_checkpoint(path) for path in self.folder.glob("step-*") if NAME.fullmatch(path.name)]
        return sorted((checkpoint for checkpoint in found if checkpoint), key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """The one of the highest step."""
        return next(reversed(self.all()), None)

    def best(self) -> Checkpoint | None:
        """The best that was measured; None when none was. A later one takes the place of an earlier one only where it
        is better by more than chance explains. Scores without the measurement behind them are compared as they are."""
        best: Checkpoint | None = None
        for checkpoint in self.all():
            if checkpoint.score is not None and (best is None or checkpoint.better_than(best)):
                best = checkpoint
        return best

    def at(self, path: Path) -> Checkpoint:
        """The checkpoint in `path`, or the latest of the run folder `path`. Raises UserError when there is none."""
        found = read_checkpoint(path) or Checkpoints(path / "checkpoints").latest() or Checkpoints(path).latest()
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
        self.folder.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {"step": step, "score": score, "state": state}
        if measured is not None:
            content |= {"score": measured.score, "measured": measured.as_json()}
        aside = self.folder / f".step-{step}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        latest = self.latest()
        kept = f"the run is safe up to step {latest.step}" if latest else "there is no earlier checkpoint"
        try:
            with full_disk.explained(f"the checkpoint of step {step}", self.folder, kept=kept):
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

    def _complete(self, aside: Path, content: dict[str, Any]) -> None:
        files = {str(path.relative_to(aside)): path.stat().st_size for path in aside.rglob("*") if path.is_file()}
        text = json.dumps({**content, "saved": time.time(), "files": files}, indent=1)
        write_atomically(aside / STATE, text + "\n")
        sync_tree(aside)

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
