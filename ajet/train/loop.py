"""The training loop: take the groups of a step, give credit, update the weights, commit the step.

Every training whose optimizer is in this process runs here; only the source of its groups differs (`sources`).

Invariants: a task counts as trained in the same commit as the checkpoint that contains it, so a killed run continues
from its last checkpoint with the same tasks in the same order. A first Ctrl-C ends the run between two steps and saves
the committed steps; a second one saves no partial step. SIGTERM does the same, once the present step has ended or
`trainer_common.grace` is over.
"""

from __future__ import annotations

from ajet.schema.errors import UserError
from ajet.store import TRANSIENT_ERRORS
from ajet.train.session import TrainingSession
from ajet.train.sources.source import Source


def train(session: TrainingSession, source: Source) -> None:
    """Train until the last step, or until `stop_after_idle_steps` steps in a row had nothing to learn from.

    Raises:
        KeyboardInterrupt: after saving, when interrupted.
        UserError: for example if every episode of a step failed; after saving, if the source allows it and store and
            disk can be reached.
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
    """Take the groups of one step, give credit, update the weights and commit the step.

    From credit on, a first interrupt waits until the step is committed; a second one leaves the step partial.
    """
    groups = source.next_groups(session)
    session.run.status.set(phase="update", step=session.step + 1)
    with session.interrupts.defer():
        batch = session.assign_credit(groups)
        update = session.update(batch, groups)
        session.commit(groups, batch, update)
    source.end_step(session, groups, update)
