"""The contract of a source: where the groups of each step come from, and what its kind of training does around a step.

The base class behaves as a training that plays its own episodes: it saves by `save_freq` and at an interrupt.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from ajet.train.session import TrainingSession, is_due
from ajet.train.validation import play_validation

if TYPE_CHECKING:
    from ajet.train.parts import RunParts
    from ajet.train.step import StepGroups, StepUpdate


class Source:
    """Brings the groups of each step, and decides when a training validates, saves and ends."""

    saves_before_error: ClassVar[bool] = True
    """True if a run that a user error ends saves its committed steps first."""

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Return the groups of the next step, waiting for them. Raises UserError."""
        raise NotImplementedError

    def running(self, session: TrainingSession) -> AbstractContextManager[None]:
        """Return a context in which the training runs, from before its first step until after its last."""
        return nullcontext()

    def start(self, session: TrainingSession) -> None:
        """Prepare the first step, after the weights are loaded and a validation that was due has run."""

    def is_finished(self, session: TrainingSession) -> bool:
        """Return whether no further step is to be made."""
        return session.step >= session.total_steps or session.is_exhausted

    def may_complete(self) -> bool:
        """Return whether a run that was asked to end should wait for the present step. Called from any thread."""
        return True

    def end_step(self, session: TrainingSession, groups: StepGroups, update: StepUpdate) -> None:
        """Check a committed step before it is saved. Raises UserError."""

    def validate_if_due(self, session: TrainingSession) -> None:
        """Validate the policy after the present step, if a validation is due and has not run."""

    def save_if_due(self, session: TrainingSession) -> None:
        """Save a checkpoint of the present step, if one is due."""
        if is_due(session.step, session.trainer.save_freq) or session.step == session.total_steps:
            session.save()

    def stop(self, session: TrainingSession, interrupt: KeyboardInterrupt) -> None:
        """End before the last step, and save what is committed."""
        session.interrupts.forget_raised()
        with session.interrupts.defer():  # a second one does not cost the checkpoint
            session.save_interrupted()

    def finish(self, session: TrainingSession) -> None:
        """End after the last step."""
        session.save()


class TaskReaderSource(Source):
    """A source of a launched run, which plays the task reader's held-out tasks itself."""

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts

    def validate_if_due(self, session: TrainingSession) -> None:
        """Play the held-out tasks, if a validation is due."""
        if self.parts.reader.has("validation") and session.is_validation_due(session.total_steps):
            validate(session, self.parts)


def validate(session: TrainingSession, parts: RunParts) -> None:
    """Play the held-out tasks after the present step, and note the result in the session."""
    session.note_validation(*play_validation(parts, session.sink, step=session.step))
