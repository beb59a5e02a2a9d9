"""Groups of `ajet serve`: clients play the episodes at any time.

Invariants: every finished episode is trained once or recorded with a reason, even if the server is killed in between,
because the store holds the episode until a checkpoint has used it. A step's validation numbers come either from the
server or from its clients, never from both. No update is made while the server plays held-out tasks, so the validation
may select a checkpoint, same as in a launch. Clients continue meanwhile.
"""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from loguru import logger

from ajet.algorithm import build_discarded_outcomes
from ajet.record.learned import advise_given_answers, is_never_right, why_nothing
from ajet.schema.episode import Episode, Outcome, list_episodes
from ajet.train.interrupts import Preempted
from ajet.train.session import TrainingSession, is_due
from ajet.train.sink import group_by_task
from ajet.train.sources.served_batch import ServedBatch, take_results
from ajet.train.sources.source import Source, validate
from ajet.train.step import StepGroups, StepUpdate, UnusedGroups

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.served import EpisodeRegistry
    from ajet.train.parts import RunParts


class ServedSource(Source):
    """Form a step from the groups finished by clients."""

    def __init__(self, desk: EpisodeRegistry, settings: AjetConfig, held_out: RunParts | None) -> None:
        """Take groups from an episode registry.

        Args:
            desk: The registry of the clients' episodes.
            held_out: plays the held-out tasks on the same gateway. None: the server plays no held-out tasks.
        """
        self._registry = desk
        self._settings = settings
        self._held_out = held_out
        self._batch = ServedBatch(0)
        self._late_held_out: list[Episode] = []
        """Held-out attempts of clients that ended in a step which the server validates itself."""

    def start(self, session: TrainingSession) -> None:
        """Begin the batch of the first step."""
        self._batch = ServedBatch(session.step + 1)

    def is_finished(self, session: TrainingSession) -> bool:
        """Return whether the last step is over. Without `total_training_steps` the training has no last step."""
        last_step = session.trainer.total_training_steps
        return last_step is not None and session.step >= last_step

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Wait until clients have finished enough groups for a step."""
        settings, batch = self._settings, self._batch
        started = time.monotonic()
        session.run.status.set(phase="serving", step=batch.step)
        while not batch.is_complete(settings):
            session.show_depths(closed=len(batch.groups), open=self._registry.open_count)
            with suppress(queue.Empty):  # the batch's time limit has passed
                result = self._registry.results.get(timeout=batch.seconds_left(settings.serve.batch_seconds))
                batch.add(result, session.backbone.version, session.trainer.max_staleness)
        if self._will_validate(session, batch.step):
            batch.held_out, self._late_held_out = [], batch.held_out
        return session.add_given_up(
            StepGroups(started, batch.groups, unused=batch.unused, single=batch.alone, held_out=batch.held_out)
        )

    def may_complete(self) -> bool:
        """Return True if the batch is complete, or open episodes may still complete it."""
        return self._registry.has_pending or self._batch.is_complete(self._settings)

    def end_step(self, session: TrainingSession, groups: StepGroups, update: StepUpdate) -> None:
        """Begin the next batch. Warn after every `stop_after_idle_steps` idle steps."""
        if session.is_exhausted:
            self._warn_idle(session)
        self._batch, self._late_held_out = ServedBatch(session.step + 1, held_out=self._late_held_out), []

    def validate_if_due(self, session: TrainingSession) -> None:
        """Play the held-out tasks, if a validation is due. Clients continue, and no update is made."""
        if self._held_out is not None and session.is_validation_due(session.trainer.total_training_steps):
            validate(session, self._held_out)

    def save_if_due(self, session: TrainingSession) -> None:
        """Save a checkpoint if due, after recording held-out attempts that ended too late for the step."""
        batch = self._batch
        if batch.held_out and self._will_validate(session, batch.step):
            # The server validates the next step itself, so the attempts of clients are recorded now. An interrupt
            # between these writes leaves a partial step.
            session.is_step_partial = True
            self._record_late(session, batch.held_out)
            session.store.use([episode.order for episode in batch.held_out], session.step)
            batch.held_out = []
            session.is_step_partial = False
            session.is_checkpoint_outdated = True
        if is_due(session.step, session.trainer.save_freq):
            session.save()

    def stop(self, session: TrainingSession, interrupt: KeyboardInterrupt) -> None:
        """End before the last step.

        At a Ctrl-C, groups without an update are recorded as untrained. At SIGTERM they wait in the store for the next
        start.
        """
        if session.is_step_partial:
            session.warn_partial_step()
            self._registry.close()
        elif isinstance(interrupt, Preempted):
            logger.warning(
                "SIGTERM: saving step {}; untrained episodes stay in the store for the next start", session.step
            )
            self._registry.close()
            if session.step:
                session.save()
        else:
            logger.warning("interrupted: saving a checkpoint after step {}", session.step)
            self.finish(session)

    def finish(self, session: TrainingSession) -> None:
        """End open episodes, record untrained groups with the last step, and save.

        Before the first step no checkpoint exists to record the groups with; the store holds them, too.
        """
        self._registry.close()
        run, remaining = session.run, ServedBatch(session.step)
        is_trained = self._batch.step == session.step  # the interrupt came after its step
        for result in [
            *(() if is_trained else self._batch.results),
            *self._late_held_out,
            *take_results(self._registry),
        ]:
            remaining.add(result)
        unused: UnusedGroups = {"oversampled": remaining.groups, **remaining.unused}
        groups = [group for reason_groups in unused.values() for group in reason_groups]
        if groups:
            outcomes: dict[str, Outcome] = {}
            for reason, reason_groups in unused.items():
                outcomes |= build_discarded_outcomes(reason_groups, reason)
            run.episodes.write(remaining.step, "train", list_episodes(groups), outcomes)
        if remaining.alone:
            run.episodes.write(remaining.step, "debug", remaining.alone)
        if session.step:
            self._record_late(session, remaining.held_out)
            for reason, reason_groups in unused.items():
                session.store.discard([group.order for group in reason_groups], remaining.step, reason)
                session.leftover_orders += [group.order for group in reason_groups if group.order >= 0]
            session.store.use([episode.order for episode in (*remaining.alone, *remaining.held_out)], remaining.step)
            session.is_checkpoint_outdated |= bool(remaining.results)
            session.save()

    def _warn_idle(self, session: TrainingSession) -> None:
        """Warn about steps without a training signal. The server continues for its clients."""
        idle, session.idle_steps = session.idle_steps, 0
        rows = [row for row in session.run.metrics.rows() if "tasks" in row][-idle:]
        logger.warning("the last {} steps had no training signal: {}", idle, why_nothing(rows))
        if is_never_right(rows):
            logger.warning("{}", advise_given_answers(self._settings))

    def _will_validate(self, session: TrainingSession, step: int) -> bool:
        """Return True if the server itself plays the held-out tasks after a coming step."""
        is_last = step == session.trainer.total_training_steps and bool(session.last_validation)
        return self._held_out is not None and (is_due(step, session.trainer.test_freq) or is_last)

    def _record_late(self, session: TrainingSession, episodes: list[Episode]) -> None:
        """Record clients' held-out attempts that ended after the step was recorded.

        If the server itself validates the step, they do not count in its validation metrics.
        """
        run, step = session.run, session.step
        has_own = self._will_validate(session, step)  # now, or after the next start
        if has_own or any(row["step"] == step and "validation/episodes" in row for row in run.metrics.rows()):
            if episodes:
                run.episodes.write(step, "validation", list_episodes(group_by_task(episodes)))
                logger.info(
                    "{} held-out attempts of clients are recorded with step {}, but not counted in its validation "
                    "metrics",
                    len(episodes),
                    step,
                )
            return
        session.sink.commit_held_out(episodes, step)
