"""What a tracker is, and what it knows of its run.

Invariant: a tracker is told, and decides nothing: whatever it raises is warned about, and it is told no more. None is
waited for longer than it says itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ajet.record.secrets import SHAPES_ONLY, Redactor
from ajet.schema.episode import Episode, Outcome

PATIENCE_S = 60.0
"""Seconds that a tracker may take to open, and again each time it is told something."""
CLOSING_S = 60.0
"""Seconds that it may take to send the rest at the end."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Which run it is."""

    project: str
    name: str
    run_id: str
    """The same when it is resumed."""
    folder: Path
    """The run directory; a tracker's own files go into a folder in it."""
    resumed_step: int | None = None
    """The step that it continues from: what was tracked of later ones did not happen. None: from nothing."""
    redact: Redactor = SHAPES_ONLY
    """What text of episodes must pass before it leaves the process."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The whole configuration as it is recorded, by root name: without secrets."""
        from ajet.config import read_recorded_tree

        return read_recorded_tree(self.folder / "resolved.yaml")


class Tracker:
    """Derive from it, write `metrics`, and name the class in `trainer_common.logger`. Made with the run; raises
    MissingExtraError, or anything else, where it cannot work: then the console stands in.

    It is made and told in a thread, one call after the other, and left out where one takes longer than `patience_s`
    seconds (`close`: than `closing_s`). None: in the thread that tells it, and waited for."""

    patience_s: ClassVar[float | None] = PATIENCE_S
    closing_s: ClassVar[float] = CLOSING_S
    outcome: str = "finished"
    """How the run ended (finished, interrupted, failed); set before `close`."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a step or a validation; all are finite."""
        raise NotImplementedError

    def episodes(self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]) -> None:
        """Episodes of a step, as they are recorded, and what became of them by uuid. Not to be changed."""

    def close(self) -> None:
        """Flush and let go. Idempotent."""
