"""The run's record and screen from the notices of Trinity's processes.

Invariants: as for verl's record, with mostly the same notices. A step ends once both parts of its numbers exist, the
credit's and the trainer's. A checkpoint is Trinity's folder of the step, moved completely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet_ray.mailbox import CheckpointNotice, CreditNotice, Notice, StepNotice
from ajet_ray.record import RayRecord

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.train.sink import RunSink
    from ajet_ray.tickets import LaunchTickets

BACKBONE = "trinity"
"""The key of a checkpoint's state with the name of the format."""


class TrinityRecord(RayRecord):
    """Handles notices. Raises UserError if a whole batch failed, or several batches had no score."""

    backbone = BACKBONE

    def __init__(self, experiment: Experiment, run: RunDirectory, sink: RunSink, tickets: LaunchTickets) -> None:
        super().__init__(experiment, run, sink, tickets)
        self._assigned: dict[int, CreditNotice] = {}

    def handle_notice(self, letter: Notice) -> None:
        """Apply a notice to the record."""
        if isinstance(letter, CreditNotice):
            self._assigned[letter.step] = letter
            return
        if isinstance(letter, StepNotice):
            assigned = self._assigned.pop(letter.step)
            letter = StepNotice(letter.step, assigned.metrics | letter.metrics, assigned.credited)
        super().handle_notice(letter)
        # The last checkpoint is written after the step's metrics were recorded.
        if isinstance(letter, CheckpointNotice) and letter.step == self.step:
            self._commit_checkpoint(letter)
