"""How fast this experiment was here, as its record tells: the newest debug run, or the last steps of the run itself.

Invariant: what was measured with another model is not told.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ajet.record.files import read_rows
from ajet.run.outlook import Pace
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

STEPS = 5
"""Training steps that the time of one is told from."""
MODEL = "model"
"""The key of a debug run's row under which its model stands."""


def last_pace(experiment: Experiment) -> Pace | None:
    """The pace of the newest debug run with the same model."""
    folder = experiment.root / experiment.name / "debug"
    runs = sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
    for run in runs:
        for row in _rows(run):
            if row.get(MODEL) == experiment.ajet.model.path and (pace := Pace.of_metrics(row)) is not None:
                return pace
    return None


def last_step(experiment: Experiment) -> float | None:
    """Seconds of a step of the run that this one would continue."""
    rows = [row["seconds/step"] for row in _rows(experiment.root / experiment.name) if "seconds/step" in row]
    found = [seconds for seconds in rows[-STEPS:] if isinstance(seconds, int | float)]
    return median(found) if found else None


def _rows(run: Path) -> Iterable[dict[str, Any]]:
    try:
        return list(read_rows(run / "metrics.jsonl"))
    except (OSError, UserError):
        return []
