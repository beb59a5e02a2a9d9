"""Interface of a tracker and the facts about its run.

Invariant: a tracker only receives data. Errors are logged and end the tracker, and no tracker is awaited longer than
its own limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ajet.record.secrets import SHAPES_ONLY, Redactor
from ajet.schema.episode import Episode, Outcome

PATIENCE_S = 60.0
"""Maximum seconds to open a tracker and for each later call."""
CLOSING_S = 60.0
"""Maximum seconds for the final flush."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker gets to know about its run: names, folder, resumed step and redactor."""

    project: str
    name: str
    run_id: str
    """Id of the run, unchanged by a resume."""
    folder: Path
    """The run directory; a tracker's own files go into a subfolder."""
    resumed_step: int | None = None
    """Step to continue from; later tracked steps are invalid. None: a new run."""
    redact: Redactor = SHAPES_ONLY
    """Redactor for episode text sent out of the process."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The run's resolved settings by top-level section, as recorded without secrets."""
        from ajet.config import read_recorded_tree

        return read_recorded_tree(self.folder / "resolved.yaml")


class Tracker:
    """Base class of trackers: write `metrics` and name the class in `trainer_common.logger`.

    The constructor raises MissingExtraError, or any other error, if the tracker cannot work; the console then replaces
    it. Calls run one after the other in a thread; a call longer than `patience_s` seconds (`close`: `closing_s`) drops
    the tracker. None: calls run in the caller's thread without a limit.
    """

    patience_s: ClassVar[float | None] = PATIENCE_S
    closing_s: ClassVar[float] = CLOSING_S
    outcome: str = "finished"
    """Outcome of the run (finished, interrupted, failed); set before `close`."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Receive the numbers of a step or validation by name. All numbers are finite."""
        raise NotImplementedError

    def episodes(self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]) -> None:
        """Receive the recorded episodes of a step, which must not be changed, and their outcomes by uuid."""

    def close(self) -> None:
        """Flush all output and close the tracker. Idempotent."""
