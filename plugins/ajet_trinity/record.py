"""What the run's own process makes of the letters of Trinity's processes: the record and the screen.

Invariants: those of verl's record, whose letters most of them are; a step ends once both halves of its numbers are
there, what credit says and what the trainer says. A checkpoint is Trinity's folder of that step, taken over whole.
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
"""The entry of a checkpoint's state that says whose form it is in."""


class TrinityRecord(RayRecord):
    """Takes letters; raises UserError when a whole batch of tasks failed, or several went without a score."""

    backbone = BACKBONE

    def __init__(self, experiment: Experiment, run: RunDirectory, sink: RunSink, tickets: LaunchTickets) -> None:
        super().__init__(experiment, run, sink, tickets)
        self._assigned: dict[int, CreditNotice] = {}

    def handle_notice(self, letter: Notice) -> None:
        """Do what it asks for."""
        if isinstance(letter, CreditNotice):
            self._assigned[letter.step] = letter
            return
        if isinstance(letter, StepNotice):
            assigned = self._assigned.pop(letter.step)
            letter = StepNotice(letter.step, assigned.metrics | letter.metrics, assigned.credited)
        super().handle_notice(letter)
        if (
            isinstance(letter, CheckpointNotice) and letter.step == self.step
        ):  # the last one, written after its numbers were told
            self._commit_checkpoint(letter)
