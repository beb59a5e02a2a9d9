"""Groups played by samplers in other processes, taken from a shared store.

Invariants: a policy is announced only after its checkpoint, with the store's commit, is on the disk. A killed trainer
therefore never forgets weights used by a sampler, and the next trainer starts from the last announced policy. No step
trains on a group older than `trainer_common.max_staleness`, and no position is leased if its group would become too old
(`Announcer`). After SIGTERM the trainer waits only if finished groups and groups in flight can complete the batch.
Colocated samplers start no further groups, and their groups in flight may finish within `trainer_common.grace`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ajet.algorithm.staleness import log_staleness
from ajet.backbone.canary import Canary
from ajet.backbone.contract import score_samples
from ajet.backbone.decoupled.announcer import BACKLOG, Announcer, make_status_writer, open_for_training
from ajet.backbone.decoupled.closed_groups import ClosedGroups, ReadyGroups, list_samplers
from ajet.backbone.decoupled.quarantine import Quarantine, build_group_terms
from ajet.backbone.decoupled.terms import PROBE, SamplingTerms
from ajet.config.schema.trainer_common import CANARY_ROUNDED, TrainerConfig
from ajet.engine.probe import WeightsProbe, encode_probe_text
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.batch import Sample
from ajet.schema.commands import format_command
from ajet.schema.episode import Episode, Timeline, list_episodes
from ajet.store import Address, SharedStore, is_shared
from ajet.train.sources.source import TaskReaderSource
from ajet.train.step import StepGroups, StepUpdate

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.record import RunDirectory
    from ajet.task_reader import TaskOrder
    from ajet.train.parts import RunParts
    from ajet.train.session import TrainingSession

POLL_S = 0.25
"""Seconds between two checks for finished groups."""


def _do_nothing(*_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class SamplerPool:
    """The samplers that fill a store, as far as the trainer knows and starts them."""

    address: Address
    is_colocated: bool = False
    """True if the samplers run on this machine and end with the trainer's process."""
    watch: Callable[[], None] = _do_nothing
    """Called while the trainer waits for groups. May raise."""
    on_first_batch: Callable[[Sequence[Episode]], None] = _do_nothing
    """Called with the episodes of the first batch."""


class StoreSource(TaskReaderSource):
    """Take finished groups from a store, and announce each policy to the samplers."""

    saves_before_error: ClassVar[bool] = False  # each step is already saved, except a step refused by the canary
    announcer: Announcer
    closed_groups: ClosedGroups
    canary: Canary
    probe: WeightsProbe

    def __init__(self, parts: RunParts, samplers: SamplerPool) -> None:
        super().__init__(parts)
        self.samplers = samplers
        self._may_complete = True
        self.announced: int | None = None
        """The last policy version announced by this process."""
        self._first_version = 0
        self._stale = 0
        """Number of groups to discard with the next step."""
        self._is_first_taken = False

    def open_store(self, run: RunDirectory, tasks: TaskOrder, frontier: Mapping[str, Any] | None) -> SharedStore:
        """Open the run's store at a checkpoint's state. Raise UserError on failure."""
        settings = self.parts.experiment.ajet
        trainer = settings.trainer_common
        log_staleness(trainer, trainer.max_staleness)
        terms = SamplingTerms.of(self.parts.experiment, self.parts.backbone.tokenizer, tasks)
        store = open_for_training(self.samplers.address, run, settings, frontier)
        conf = str(self.parts.experiment.yaml_path or "FILE.yaml")
        command = format_command("sample", "--conf", conf, "--store", self.samplers.address.shown)
        shown_command = "" if self.samplers.is_colocated else command
        self.announcer = Announcer(
            store, terms, run.run_id, settings, report_depths=make_status_writer(run), sampler_command=shown_command
        )
        terms_of_groups = build_group_terms(self.parts.experiment, run.run_id, adapters=trainer.lora.adapters)
        self.closed_groups = ClosedGroups(store, trainer, Quarantine(store, terms_of_groups))
        return store

    def running(self, session: TrainingSession) -> AbstractContextManager[None]:
        """Return a context in which the trainer writes heartbeats into the store and shows the samplers' state."""
        return self.announcer.alive(lambda: session.step)

    def start(self, session: TrainingSession) -> None:
        """Announce the initial weights of the run."""
        backbone = session.backbone
        self._first_version = backbone.version
        rounded = is_rounded(backbone)
        self.canary = Canary(session.trainer.canary, rounded=rounded)
        earlier_announcement = _shared_store(session).announced()
        earlier_probe = (
            WeightsProbe.from_json(earlier_announcement.policy.told.get(PROBE))
            if earlier_announcement is not None
            else None
        )
        self.probe = start_probe(backbone, session.trainer, earlier_probe, rounded=rounded)
        self.save_if_due(session)

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Wait for a batch of groups."""
        size, step = session.experiment.ajet.data.train_batch_size, session.step + 1
        started, version = time.monotonic(), session.backbone.version
        session.run.status.set(phase="rollout", step=step)
        ready, self._may_complete = ReadyGroups(), True
        while len(ready.groups) < size:
            with session.interrupts.defer(ends_step=False):
                self.closed_groups.read(session.task_order, version)
                ready = self.closed_groups.ready(version, step)
                self._stale = len(ready.stale)
                if len(ready.groups) < size:
                    self._wait_for_groups(session, len(ready.groups), size)
        groups = sorted(ready.groups[:size], key=lambda group: group.order)
        reuse, self._stale = self.closed_groups.take(groups, ready.stale, ready.expired), 0
        if not self._is_first_taken:
            self.samplers.on_first_batch(list_episodes(groups))
            self._is_first_taken = True
        refuse_if_all_failed(list_episodes(groups), step)
        return StepGroups(
            started,
            groups,
            unused={"stale": ready.stale},
            by_samplers=True,
            reuse=reuse,
            given_up=self.announcer.take_newly_dead(session.task_order),  # counts `dead`
            dead=self.announcer.dead,
            quarantined=self.announcer.quarantined,
        )

    def may_complete(self) -> bool:
        """Return False if, after SIGTERM, finished groups and groups in flight cannot complete the step.

        The value is that of the last check while waiting for groups.
        """
        return self._may_complete

    def end_step(self, session: TrainingSession, groups: StepGroups, update: StepUpdate) -> None:
        """Compare the samplers' log-probabilities with the trainer's, before the step is saved and announced.

        Raises:
            UserError: the difference exceeded the tolerance twice in a row.
        """
        if update.fresh_gap is not None:
            samplers = list_samplers(groups.groups, update.version)
            self.canary.judge(update.fresh_gap, version=update.version, samplers=samplers)

    def save_if_due(self, session: TrainingSession) -> None:
        """Save every step and announce its policy. Raise TrainerFencedError if another process became the trainer."""
        if session.step:
            session.save()
        staleness_limit = session.trainer.max_staleness
        self.probe = extend_probe(
            self.probe, session.backbone, keep=BACKLOG if staleness_limit is None else staleness_limit + 1
        )
        self.announcer.changed()
        self.announce_policy(session)

    def stop(self, session: TrainingSession, interrupt: KeyboardInterrupt) -> None:
        """End before the last step. Groups of colocated samplers may finish within the remaining grace time."""
        super().stop(session, interrupt)
        grace, interrupts = session.trainer.grace, session.interrupts
        if session.is_step_partial or not self.samplers.is_colocated:
            return
        if self.announced is None or not interrupts.remaining_grace(grace):
            return
        self.announcer.hold()
        if self.announced != session.backbone.version:
            self.save_if_due(session)
        while interrupts.remaining_grace(grace):
            with interrupts.defer():
                self.announce_policy(session)
                if not self.announcer.leased:
                    break
                time.sleep(POLL_S)

    def finish(self, session: TrainingSession) -> None:
        """End after the last step, and announce the end to samplers."""
        super().finish(session)
        self.announce_policy(session, is_last=True)
        _shared_store(session).leave()

    def _wait_for_groups(self, session: TrainingSession, closed: int, size: int) -> None:
        """Announce the policy, decide whether the step can still complete, and sleep until the next check.

        Args:
            closed: Groups available for the step.
            size: Groups needed for the step.
        """
        is_ending = session.interrupts.remaining_grace(session.trainer.grace) is not None
        if is_ending and self.samplers.is_colocated:
            # From here on samplers start no further groups, so the groups in flight are all that can still come.
            self.announcer.hold()
        in_flight_before = self.announcer.leased
        self.announce_policy(session)
        in_flight = max(in_flight_before, self.announcer.leased)  # a group may have finished since `closed` was counted
        self._may_complete = (
            not is_ending or closed + in_flight >= size or (self.samplers.is_colocated and in_flight > 0)
        )
        if not is_ending:  # at the end samplers may be ending, too
            self.samplers.watch()
        self.announcer.wait(session.step + 1, closed, size, self._stale)
        time.sleep(POLL_S)

    def announce_policy(self, session: TrainingSession, *, is_last: bool = False) -> None:
        """Write policy version and usable positions into the store for samplers, if either changed.

        Args:
            is_last: True if no step follows.
        """
        self.announced = session.backbone.version
        size = session.experiment.ajet.data.train_batch_size
        self.announcer.announce(
            session.step,
            session.backbone.version,
            find_weights(session.run, session.step),
            first_version=self._first_version,
            probe=self.probe,
            stale=self._stale,
            groups_needed=size * max(0, session.total_steps - session.step),
            is_last=is_last,
        )


def start_probe(
    backbone: Backbone, trainer: TrainerConfig, earlier: WeightsProbe | None, *, rounded: bool
) -> WeightsProbe:
    """Return a probe: a fixed text with its log-probabilities under each policy version, to check a server's weights.

    It has versions before the present one only.

    Args:
        earlier: the probe announced by an earlier process.
        rounded: True if the trainer computes with fewer bits than float32.
    """
    tolerance = trainer.canary_tolerance(rounded=rounded) or CANARY_ROUNDED
    return WeightsProbe.resume_from(earlier, encode_probe_text(backbone.tokenizer), tolerance, version=backbone.version)


def extend_probe(probe: WeightsProbe, backbone: Backbone, *, keep: int) -> WeightsProbe:
    """Return the probe with the log-probabilities of the trainer's present weights.

    Args:
        keep: number of earlier versions to retain.
    """
    ids = np.array(probe.ids, np.int32)
    mask = np.ones(len(ids), np.bool_)
    mask[0] = False
    zeros, versions = np.zeros(len(ids), np.float32), np.where(mask, backbone.version, -1).astype(np.int32)
    timeline = Timeline(0, "probe", "probe", ids, mask, zeros, zeros, versions, ())
    with backbone.scorer() as scorer:
        (logprobs,) = score_samples(
            scorer, [Sample(timeline, "probe", 0, zeros, 1.0)], tokens=len(ids), temperature=1.0
        )
    return probe.add_version(backbone.version, [float(value) for value in logprobs[1:]], keep=keep)


def is_rounded(backbone: Backbone) -> bool:
    """Return True if the trainer computes log-probabilities with fewer bits than float32. Opens its scorer."""
    with backbone.scorer() as scorer:
        return scorer.dtype != "float32"


def _shared_store(session: TrainingSession) -> SharedStore:
    """Return the session's store as a shared store, which this source always opens."""
    assert is_shared(session.store), "`open_store` opens a shared store for this source"
    return session.store


def find_weights(run: RunDirectory, step: int) -> Path | None:
    """Return the folder of the weights after a step, or None for the weights of model.path."""
    checkpoint = run.checkpoints.folder / f"step-{step}"
    if checkpoint.exists():
        return checkpoint.absolute()
    return run.resumed.path.absolute() if run.resumed is not None else None
