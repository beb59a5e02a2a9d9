"""metrics.jsonl: one row of numbers for each event of a run, and the same to the trackers.

Invariant: rows are appended in order and put on the disk; after a resume the file holds no row of a step that will be
played again. A number that is not finite is null.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.record import files
from ajet.record.chain import Chain
from ajet.record.files import append_lines, keep_rows, read_rows
from ajet.record.plain_json import plain
from ajet.record.secrets import Redactor
from ajet.record.trackers import Tracker, call_within, find_patience_seconds

if TYPE_CHECKING:
    from ajet.schema.episode import Episode, Outcome


class Trackers:
    """The open trackers of a run, called one after the other. A tracker that fails is logged once and dropped."""

    def __init__(self, opened: Iterable[Tracker] = ()) -> None:
        self.opened = list(opened)

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of a step or validation to all trackers."""
        self._call_each(lambda tracker: tracker.metrics(step, numbers))

    def episodes(self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]) -> None:
        """Send recorded episodes with their outcomes to all trackers."""
        self._call_each(lambda tracker: tracker.episodes(step, split, episodes, outcomes))

    def close(self, outcome: str = "finished") -> None:
        """Close all trackers with the outcome of the run. Idempotent."""
        for tracker in self.opened:
            tracker.outcome = outcome
        self._call_each(lambda tracker: tracker.close(), closing=True)
        self.opened.clear()

    def _call_each(self, call: Callable[[Tracker], None], *, closing: bool = False) -> None:
        """Call each tracker within its timeout. One that raises or takes too long is dropped, and the run goes on."""
        for tracker in list(self.opened):
            timeout_s = find_patience_seconds(type(tracker), closing=closing)
            try:
                call_within(timeout_s, partial(call, tracker), what=type(tracker).__name__)
            except Exception as error:  # noqa: BLE001 - the run continues without this tracker
                name = type(tracker).__name__
                logger.warning(
                    "the tracker {} failed ({}: {}); it gets no further numbers", name, type(error).__name__, error
                )
                self.opened.remove(tracker)


class Metrics:
    """The metrics of one run: rows in `metrics.jsonl`, and the same numbers to the trackers. Thread-safe."""

    def __init__(
        self, path: Path, redact: Redactor | None = None, trackers: Sequence[Tracker] = (), *, every: int = 1
    ) -> None:
        """Open the file and use the trackers.

        Args:
            path: The file `metrics.jsonl`.
            redact: Removes secrets from rows.
            trackers: Further outputs, such as W&B.
            every: The trackers get only steps that are multiples of this number, and every validation.
        """
        self.path = path
        self.trackers = Trackers(trackers)
        self._redact = redact or Redactor({})
        self._every_steps = every
        self.chain: Chain | None = None
        """Chain committed after each row."""
        self.judge = ""
        """Judge recorded in each row; numbers of different judges are not compared. "": not recorded."""
        self._lock = threading.Lock()

    def log(self, step: int, values: Mapping[str, float], **more: Any) -> None:
        """Append one row of numbers to the file, link it in the chain, and send the finite numbers to the trackers.

        Args:
            step: The training step.
            values: Numbers by name. One that is not finite is recorded as null.
            more: Further JSON values for the file only, such as the tasks.

        Raises:
            UserError: The disk is full.
        """
        if self.judge:
            more = {"judge": self.judge, **more}
        numbers = {name: _finite_or_none(value) for name, value in values.items()}
        row = {"step": step, "time": time.time(), **numbers, **plain(more)}
        with self._lock:
            with files.explain_write_errors("a row of metrics", self.path.parent, intact="earlier rows are complete"):
                append_lines(self.path, [line := self._redact.row(row)])
            if self.chain is not None:
                self.chain.note_row(line)
                # Only rows of training steps have tasks.
                self.chain.commit("step" if "tasks" in more else "record", step)
            finite = {name: value for name, value in numbers.items() if value is not None}
            if step % self._every_steps == 0 or any(name.startswith("validation/") for name in finite):
                self.trackers.metrics(step, finite)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows in the order of logging. Each has `step` and `time` (seconds since the epoch)."""
        return list(read_rows(self.path))

    def truncate(self, after_step: int) -> int:
        """Remove the rows of steps after `after_step`, and return their number."""
        return keep_rows(self.path, lambda row: row.get("step", -1) <= after_step)

    def close(self, outcome: str = "finished") -> None:
        """Close the trackers with the outcome of the run. Idempotent."""
        with self._lock:
            self.trackers.close(outcome)

    def track_episodes(
        self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]
    ) -> None:
        """Send recorded episodes to the trackers, if they get this step or a validation."""
        if step % self._every_steps == 0 or split == "validation":
            with self._lock:
                self.trackers.episodes(step, split, episodes, outcomes)


def _finite_or_none(value: float) -> float | int | None:
    """Return the number, or None for NaN and infinity, which JSON cannot hold."""
    if isinstance(value, int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None
