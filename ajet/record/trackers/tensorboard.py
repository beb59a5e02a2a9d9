"""TensorBoard tracker: event files written by tensorboard's own writer, without torch."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ajet.record.trackers.contract import TrackedRun, Tracker
from ajet.schema.errors import MissingExtraError


class TensorboardTracker(Tracker):
    """Writes scalars to `tensorboard/` in the run directory. After a resume viewers drop later steps."""

    patience_s = None

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingExtraError("tensorboard", "tensorboard", needed_for="The tracker tensorboard") from error
        self._event_class, self._summary_class = event_pb2.Event, summary_pb2.Summary
        self._writer = EventFileWriter(str(run.folder / "tensorboard"))
        if run.resumed_step is not None:
            # The event makes viewers drop the later steps, which the resumed run writes again.
            session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.add_event(
                self._event_class(wall_time=time.time(), step=run.resumed_step + 1, session_log=session)
            )

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write one event with a scalar per number, and flush the file."""
        scalars = [self._summary_class.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(
            self._event_class(wall_time=time.time(), step=step, summary=self._summary_class(value=scalars))
        )
        self._writer.flush()

    def close(self) -> None:
        """End the thread that writes the event file, and close the file."""
        self._writer.close()
