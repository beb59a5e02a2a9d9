"""Groups of `ajet serve`: clients play the episodes, when and as they like.

Invariants: every episode that a client finished is trained on once or recorded with the reason why not, whoever kills
the server in between: the store keeps it until a checkpoint has used it. The numbers of one step's validation are the
server's own or its clients', never both. No update is made while the server plays held-out tasks, so that a checkpoint
may be picked by what it measured, as in a launch; clients go on meanwhile.
"""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from loguru import logger

from ajet.algorithm import discarded
from ajet.record.learned import advise_given_answers, is_never_right, why_nothing
from ajet.schema.episode import Episode, Outcome, episodes_of
from ajet.train.interrupts import Preempted
from ajet.train.session import is_due
from ajet.train.sources.served_batch import Batch, take_results
from ajet.train.sources.source import Source, validate
from ajet.train.validation import conclude_held_out, groups_by_task

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.served import EpisodeRegistry
    from ajet.train.parts import Parts
    from ajet.train.session import TrainingSession
    from ajet.train.step import StepGroups, StepUpdate, UnusedGroups


class ServedSource(Source):
    """Makes a step of the groups that clients finished, when they are enough."""

    def __init__(self, desk: EpisodeRegistry, settings: AjetConfig, held_out: Parts | None) -> None:
        """Take groups from a desk. `held_out`: plays the held-out tasks on the same gateway; None: nobody does."""
        self._desk, self._settings, self._held_out = desk, settings, held_out
        self._batch = Batch(0)
        self._late: list[Episode] = []
        """Held-out attempts of clients in a step that has the server's own validation."""

    def start(self, session: TrainingSession) -> None:
        """Begin the first batch."""
        self._batch = Batch(session.step + 1)

    def is_finished(self, session: TrainingSession) -> bool:
        """Return whether the last step is over; without `total_training_steps` there is none."""
        last = session.trainer.total_training_steps
        return last is not None and session.step >= last

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Wait until clients have finished enough groups for a step."""
        settings, batch = self._settings, self._batch
        began = time.monotonic()
        session.run.status.set(phase="serving", step=batch.step)
        while not batch.whole(settings):
            session.show_depths(closed=len(batch.groups), open=self._desk.playing)
            with suppress(queue.Empty):  # its time is over
                result = self._desk.results.get(timeout=batch.patience(settings.serve.batch_seconds))
                batch.add(result, session.backbone.version, session.trainer.max_staleness)
        if self._will_validate(session, batch.step):
            batch.held_out, self._late = [], batch.held_out
        return session.own_groups(
            began,
            batch.groups,
            unused=batch.unused,
            single=batch.alone,
            held_out=batch.held_out,
        )

    def may_complete(self) -> bool:
        """Return whether what goes on at the desk may still fill the batch, or has."""
        return self._desk.expects or self._batch.whole(self._settings)

    def end_step(self, session: TrainingSession, groups: StepGroups, update: StepUpdate) -> None:
        """Begin the next batch; say after every `stop_after_idle_steps` idle steps that nothing is learned."""
        if session.is_exhausted:
            self._warn_idle(session)
        self._batch, self._late = Batch(session.step + 1, held_out=self._late), []

    def validate_if_due(self, session: TrainingSession) -> None:
        """Play the held-out tasks, while clients go on and no update is made."""
        if self._held_out is not None and session.is_validation_due(session.trainer.total_training_steps):
            validate(session, self._held_out)

    def save_if_due(self, session: TrainingSession) -> None:
        """Record held-out attempts that came too late for the step, and save a checkpoint if one is due."""
        batch = self._batch
        if batch.held_out and self._will_validate(session, batch.step):
            session.torn = True  # the next step has the server's own validation: these are recorded now
            self._conclude_late(session, batch.held_out)
            session.store.use([episode.order for episode in batch.held_out], session.step)
            batch.held_out, session.torn, session.is_checkpoint_outdated = [], False, True
        if is_due(session.step, session.trainer.save_freq):
            session.save()

    def stop(self, session: TrainingSession, interrupt: KeyboardInterrupt) -> None:
        """End before the last step. What is not trained on is recorded as left over at a Ctrl-C; at SIGTERM it waits in
        the store for the next start."""
        if session.torn:
            session.warn_torn()
            self._desk.close()
        elif isinstance(interrupt, Preempted):
            logger.warning(
                "asked to end: saving step {}; what is not trained on waits for the next start", session.step
            )
            self._desk.close()
            if session.step:
                session.save()
        else:
            logger.warning("interrupted: saving what was learned up to step {}", session.step)
            self.finish(session)

    def finish(self, session: TrainingSession) -> None:
        """End what is under way, record what was not trained on with the last step, and save. Before the first step
        there is no checkpoint to record it with: then it stays in the store, too."""
        self._desk.close()
        run, left = session.run, Batch(session.step)
        is_trained = self._batch.step == session.step  # the interrupt came after its step
        for result in [*(() if is_trained else self._batch.results), *self._late, *take_results(self._desk)]:
            left.add(result)
        unused: UnusedGroups = {"oversampled": left.groups, **left.unused}
        groups = [group for each in unused.values() for group in each]
        if groups:
            outcomes: dict[str, Outcome] = {}
            for reason, each in unused.items():
                outcomes |= discarded(each, reason)
            run.episodes.write(left.step, "train", episodes_of(groups), outcomes)
        if left.alone:
            run.episodes.write(left.step, "debug", left.alone)
        if session.step:
            self._conclude_late(session, left.held_out)
            for reason, each in unused.items():
                session.store.discard([group.order for group in each], left.step, reason)
                session.leftover_orders += [group.order for group in each if group.order >= 0]
            session.store.use([episode.order for episode in (*left.alone, *left.held_out)], left.step)
            session.is_checkpoint_outdated |= bool(left.results)
            session.save()

    def _warn_idle(self, session: TrainingSession) -> None:
        """Warn that nothing was learned; the server continues for its clients."""
        idle, session.idle_steps = session.idle_steps, 0
        rows = [row for row in session.run.metrics.rows() if "tasks" in row][-idle:]
        logger.warning("nothing could be learned in the last {} steps: {}", idle, why_nothing(rows))
        if is_never_right(rows):
            logger.warning("{}", advise_given_answers(self._settings))

    def _will_validate(self, session: TrainingSession, step: int) -> bool:
        """Return whether the server plays the held-out tasks once a step that is to come is over."""
        is_last = step == session.trainer.total_training_steps and bool(session.last_validation)
        return self._held_out is not None and (is_due(step, session.trainer.test_freq) or is_last)

    def _conclude_late(self, session: TrainingSession, episodes: list[Episode]) -> None:
        """Conclude clients' held-out attempts that are recorded with a step that is over."""
        run, step = session.run, session.step
        has_own = self._will_validate(session, step)  # if not now, by the server that goes on
        if has_own or any(row["step"] == step and "validation/episodes" in row for row in run.metrics.rows()):
            if episodes:
                run.episodes.write(step, "validation", episodes_of(groups_by_task(episodes)))
                logger.info(
                    "{} held-out attempts of clients are recorded with step {} and are no part of its validation's "
                    "numbers",
                    len(episodes),
                    step,
                )
            return
        conclude_held_out(episodes, run, step=step, on_step=session.on_step, total=session.total_steps)
