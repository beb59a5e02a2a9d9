"""The contract of a source: provide the groups of each step, and do the work around a step.

The base class behaves like a training that plays its own episodes: it saves by `save_freq` and at an interrupt.
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
    """Provide the groups of each step, and decide when a training validates, saves and ends."""

    saves_before_error: ClassVar[bool] = True
    """True to save committed steps before a user error ends the run."""

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Wait for the groups of the next step and return them. Raise UserError if the step is impossible."""
        raise NotImplementedError

    def running(self, session: TrainingSession) -> AbstractContextManager[None]:
        """Return a context for the training, entered before the first step and left after the last."""
        return nullcontext()

    def start(self, session: TrainingSession) -> None:
        """Prepare the first step, after the weights are loaded and an initial validation has run."""

    def is_finished(self, session: TrainingSession) -> bool:
        """Return whether the training has made its last step."""
        return session.step >= session.total_steps or session.is_exhausted

    def may_complete(self) -> bool:
        """Return False if waiting for the present step is useless, so a run after SIGTERM should end now.

        May be called from any thread.
        """
        return True

    def end_step(self, session: TrainingSession, groups: StepGroups, update: StepUpdate) -> None:
        """Check a committed step before it is saved. Raise UserError to end the run."""

    def validate_if_due(self, session: TrainingSession) -> None:
        """Validate the policy after the present step, if a validation is due and has not run."""

    def save_if_due(self, session: TrainingSession) -> None:
        """Save a checkpoint of the present step, if one is due."""
        if is_due(session.step, session.trainer.save_freq) or session.step == session.total_steps:
            session.save()

    def stop(self, session: TrainingSession, interrupt: KeyboardInterrupt) -> None:
        """End before the last step, and save the committed steps."""
        session.interrupts.forget_raised()
        with session.interrupts.defer():  # a second interrupt must not prevent the save
            session.save_interrupted()

    def finish(self, session: TrainingSession) -> None:
        """End after the last step."""
        session.save()


class TaskReaderSource(Source):
    """A source of a launched run, with validation on the task reader's held-out tasks."""

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts

    def validate_if_due(self, session: TrainingSession) -> None:
        """Play the held-out tasks, if a validation is due."""
        if self.parts.reader.has("validation") and session.is_validation_due(session.total_steps):
            validate(session, self.parts)


def validate(session: TrainingSession, parts: RunParts) -> None:
    """Play the held-out tasks after the present step, and note the result in the session."""
    session.note_validation(*play_validation(parts, session.sink, step=session.step))
