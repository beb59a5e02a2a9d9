"""Evaluations: the records of `ajet eval` that played a checkpoint, wherever they lie below the folder of runs.

Invariant: a checkpoint is recognised by the digest of its `state.json`, or by the path of the model folder; never by
the name of a run or a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.record_file import read_record_file
from ajet.record.checkpoint import STATE
from ajet.record.files import LONGEST_LINE, read_json

if TYPE_CHECKING:
    from ajet.record.checkpoint import Checkpoint

FILE = "evaluation.json"


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """A recorded evaluation: its folder `NAME/eval/…` and the content of `evaluation.json`."""

    folder: Path
    label: str
    """The model's name on the command line."""
    identity: dict[str, Any]
    """Model, tasks, settings, code and sampling."""

    @property
    def model(self) -> dict[str, Any]:
        """The part of the evaluation's identity that names the model."""
        model = self.identity.get("model")
        return model if isinstance(model, dict) else {}

    def compares_with(self, other: EvaluationRecord) -> bool:
        """True if both played the same tasks, drawn the same way, with the same code and settings."""
        return {**self.identity, "model": None} == {**other.identity, "model": None}


def state_digest(checkpoint: Path) -> str:
    """Return the digest by which an evaluation's identity names a checkpoint."""
    return hashlib.blake2b(read_record_file(checkpoint / STATE, LONGEST_LINE), digest_size=16).hexdigest()


def evaluations_of(run: Path, checkpoint: Checkpoint, *folders: Path) -> list[EvaluationRecord]:
    """Return the evaluations of a checkpoint of `run`, in the run's folder and in neighbouring runs.

    Args:
        folders: further model folders with the checkpoint's weights, such as an export.
    """
    digest = state_digest(checkpoint.path)
    exported = run / "exports" / f"step-{checkpoint.step}"
    paths = {str(folder.resolve()) for folder in (checkpoint.path, exported, *folders)}
    return [
        each
        for each in _evaluations_below(run.resolve().parent)
        if (each.model["state"] == digest if "state" in each.model else each.model.get("path") in paths)
    ]


def base_evaluations_of(run: Path, tuned: Sequence[EvaluationRecord], path: str | None) -> list[EvaluationRecord]:
    """Return evaluations of the model at `path` that are comparable with at least one of `tuned`."""
    return [
        each
        for each in _evaluations_below(run.resolve().parent)
        if path is not None and each.model.get("path") == path and any(map(each.compares_with, tuned))
    ]


def _evaluations_below(root: Path) -> list[EvaluationRecord]:
    records = []
    for folder in sorted(root.glob("*/eval/*")):
        try:
            about = read_json(folder / FILE)
        except (OSError, ValueError):  # it was killed before it began, or is no evaluation
            continue
        identity = about.get("identity")
        if isinstance(identity, dict):
            records.append(EvaluationRecord(folder, str(about.get("model") or folder.name), identity))
    return records
