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
        """The part of `identity` that names the evaluated model: its path and a digest of its files."""
        model = self.identity.get("model")
        return model if isinstance(model, dict) else {}

    def compares_with(self, other: EvaluationRecord) -> bool:
        """Return True if the evaluations differ at most in the model: same tasks, sampling, code and settings."""
        return {**self.identity, "model": None} == {**other.identity, "model": None}


def state_digest(checkpoint: Path) -> str:
    """Return the digest of a checkpoint's `state.json`, by which evaluations name the checkpoint."""
    return hashlib.blake2b(read_record_file(checkpoint / STATE, LONGEST_LINE), digest_size=16).hexdigest()


def evaluations_of(run: Path, checkpoint: Checkpoint, *folders: Path) -> list[EvaluationRecord]:
    """Return the evaluations of a checkpoint, found in the folder of `run` and in its neighbour folders.

    Args:
        folders: Further model folders with the checkpoint's weights, such as an export.
    """
    digest = state_digest(checkpoint.path)
    exported = run / "exports" / f"step-{checkpoint.step}"
    paths = {str(folder.resolve()) for folder in (checkpoint.path, exported, *folders)}
    return [
        record
        for record in _evaluations_below(run.resolve().parent)
        if (record.model["state"] == digest if "state" in record.model else record.model.get("path") in paths)
    ]


def base_evaluations_of(run: Path, tuned: Sequence[EvaluationRecord], path: str | None) -> list[EvaluationRecord]:
    """Return the evaluations of the untrained model at `path` that are comparable with at least one of `tuned`."""
    return [
        record
        for record in _evaluations_below(run.resolve().parent)
        if path is not None and record.model.get("path") == path and any(map(record.compares_with, tuned))
    ]


def _evaluations_below(root: Path) -> list[EvaluationRecord]:
    """Return all readable evaluations `RUN/eval/NAME` in the folder of runs `root`."""
    records = []
    for folder in sorted(root.glob("*/eval/*")):
        try:
            content = read_json(folder / FILE)
        except (OSError, ValueError):  # it was killed before it began, or is no evaluation
            continue
        identity = content.get("identity")
        if isinstance(identity, dict):
            records.append(EvaluationRecord(folder, str(content.get("model") or folder.name), identity))
    return records
