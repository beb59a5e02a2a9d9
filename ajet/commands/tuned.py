"""Tuned: what a run has left, for the program that started it.

Invariant: it is read from the run directory, so that a run of yesterday has the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tuned:
    """The folder, the model and the rewards of a run."""

    path: Path
    """The run directory."""
    checkpoint: Path | None
    """The best model that was measured, else the last: a folder that `model=` and transformers load. None before one
    was saved."""
    rewards: list[float]
    """The mean reward of each training step that had one, in order; those before a resume included."""

    @classmethod
    def of(cls, folder: Path) -> Tuned:
        """The results of the run in `folder`. Raises UserError for a checkpoint that cannot be brought into a form to
        load."""
        from ajet.commands.export import model_folder
        from ajet.record.checkpoints import checkpoints_of
        from ajet.record.files import read_rows

        checkpoints = checkpoints_of(folder)
        found = checkpoints.best() or checkpoints.latest()
        rows = [row["train/reward"] for row in read_rows(folder / "metrics.jsonl") if "train/reward" in row]
        return cls(folder, model_folder(folder, found) if found else None, [r for r in rows if r is not None])
