"""The training loop: take the groups of a step, assign credit, update the weights, commit the step.

Every training with its optimizer in this process runs here; only the source of the groups differs (`sources`).

Invariants: a task counts as trained in the commit of the checkpoint with its step, so a killed run resumes from
committed steps. Ctrl-C ends the run after the present step, and a second Ctrl-C saves no partial step. SIGTERM ends the
run after the present step or after `trainer_common.grace`.
"""

from __future__ import annotations

from ajet.schema.errors import UserError
from ajet.store import TRANSIENT_ERRORS
from ajet.train.session import TrainingSession
from ajet.train.sources.source import Source


def train(session: TrainingSession, source: Source) -> None:
    """Train until the last step, or until `stop_after_idle_steps` consecutive steps carried no training signal.

    Args:
        source: Provides the groups of each step.

    Raises:
        KeyboardInterrupt: after saving, when interrupted.
        UserError: for example if every episode of a step failed. Raised after saving, if the source allows saving and
            store and disk are reachable.
    """
    interrupts = session.interrupts
    with source.running(session):
        try:
            source.validate_if_due(session)
            source.start(session)
            while not source.is_finished(session):
                with interrupts.grace_period(session.trainer.grace, source.may_complete):
                    train_step(session, source)
                source.validate_if_due(session)
                with interrupts.defer():
                    source.save_if_due(session)
        except KeyboardInterrupt as interrupt:
            source.stop(session, interrupt)
            raise
        except UserError as problem:
            if source.saves_before_error and not isinstance(problem, TRANSIENT_ERRORS):
                with interrupts.defer():
                    session.save_ended()
            raise
    source.finish(session)


def train_step(session: TrainingSession, source: Source) -> None:
    """Take the groups of a step, assign credit, update the weights and commit the step.

    From credit assignment on, a first interrupt waits for the commit. A second interrupt leaves the step partial.
    """
    groups = source.next_groups(session)
    session.run.status.set(phase="update", step=session.step + 1)
    with session.interrupts.defer():
        batch = session.assign_credit(groups)
        update = session.update(batch, groups)
        session.commit(groups, batch, update)
    source.end_step(session, groups, update)
