"""Groups of a step as they come from samplers elsewhere, through a shared store.

Invariants: a policy is announced only once its checkpoint, with the store's commit, is on the disk: no sampler ever
plays with weights that a killed trainer forgets, and what the next trainer goes on from is what was announced last. A
group older than `trainer_common.max_staleness` is trained on by no step, and no position is given out that could only
become one if all goes in order (`Policy.below`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.algorithm.staleness import announce
from ajet.engine.probe import Probe
from ajet.rollout.failure import all_failed, refuse_if_all_failed
from ajet.run.closed_groups import ClosedGroups, Ready, newest
from ajet.run.probing import asked, begun
from ajet.run.terms import MOST, PROBE, Terms
from ajet.run.train import learn
from ajet.schema.episode import Episode, episodes_of
from ajet.store import Address, note_elsewhere, open_shared

if TYPE_CHECKING:
    from ajet.backbone.runner import Interrupts
    from ajet.config import AjetConfig
    from ajet.record import RunDirectory
    from ajet.run.parts import Parts
    from ajet.run.train import Training
    from ajet.store import Kept, SharedStore
    from ajet.task_reader import TaskOrder

LOOK = 0.25
"""Seconds between two looks for closed groups."""
BACKLOG = 2
"""Batches that may be played ahead where no staleness is too much."""
LONGEST_REASON = 300
"""Characters of why an attempt failed."""
TOLD_EVERY = 30.0
"""Seconds between two signs of life, and between two lines that say what is waited for."""


class FromStore:
    """See `ajet.run.train.Source`."""

    def __init__(
        self,
        address: Address,
        *,
        watch: Callable[[], None] = lambda: None,
        on_first: Callable[[Sequence[Episode]], None] = lambda episodes: None,
    ) -> None:
        """`watch` is asked while groups are waited for, and may raise. `on_first` sees the first batch."""
        self._address, self._watch, self._on_first = address, watch, on_first
        self._store: SharedStore
        self._terms: Terms
        self._probe: Probe
        self._run: RunDirectory
        self._ahead = self._began = 0
        self._below = -1
        self._told = 0.0
        self._closed: ClosedGroups
        self._stale = 0
        """Groups that wait to be discarded with the next step."""
        self._given_up: set[int] = set()
        """Positions of which that was said, and that are so still."""

    def open(self, parts: Parts, run: RunDirectory, tasks: TaskOrder, at: Mapping[str, Any] | None) -> SharedStore:
        """Raises UserError."""
        settings = parts.experiment.ajet
        trainer = settings.trainer_common
        announce(trainer, trainer.max_staleness)
        if settings.rollout.enable_oversample:
            logger.warning("rollout.enable_oversample has no effect: every group that samplers close is used")
        self._run = run
        self._terms = Terms.of(parts.experiment, parts.backbone.tokenizer, tasks)
        self._ahead = ahead(settings)
        reached = run.resumed.step if run.resumed is not None else 0
        self._store = open_shared(
            self._address,
            at=at,
            rolls=True,
            run=run.run_id,
            redact=run.redact,
            usable=_usable(settings.rollout.num_repeat, reached),
        )
        note_elsewhere(run.path, self._address.shown)
        self._store.join("trainer", run.run_id)
        self._closed = ClosedGroups(self._store, trainer)
        return self._store

    def begun(self, training: Training) -> None:
        """What the run goes on from is what samplers play with."""
        self._began = training.parts.backbone.version
        earlier = self._store.announced()
        self._probe = begun(training.parts, Probe.of(earlier.policy.told.get(PROBE)) if earlier is not None else None)
        self.learned(training)

    def learned(self, training: Training) -> None:
        """Save, and announce what is saved. Raises Fenced where another trains by now."""
        if training.step:
            training.save()
        most = training.parts.experiment.ajet.trainer_common.max_staleness
        self._probe = asked(self._probe, training.parts.backbone, keep=BACKLOG if most is None else most + 1)
        self._below = -1
        self._announce(training)

    def ended(self, training: Training) -> None:
        """Samplers are told so."""
        self._announce(training, over=True)
        self._store.leave()

    def step(self, training: Training, tasks: TaskOrder, interrupts: Interrupts) -> None:
        """Wait for a batch of groups and train on it."""
        settings = training.parts.experiment.ajet
        size, step = settings.data.train_batch_size, training.step + 1
        began, version = time.monotonic(), training.parts.backbone.version
        training.run.status.set(phase="rollout", step=step)
        ready = Ready()
        while len(ready.groups) < size:
            with interrupts.held():
                self._closed.read(tasks)
                ready = self._closed.ready(version, step)
                self._stale = len(ready.stale)
                if len(ready.groups) < size:
                    self._wait(training, len(ready.groups), size)
        groups = sorted(ready.groups[:size], key=lambda group: group.order)
        reuse, self._stale = self._closed.take(groups, ready.stale, ready.worn), 0
        self._on_first(episodes_of(groups))
        self._on_first = lambda episodes: None
        refuse_if_all_failed(episodes_of(groups), step)
        given_up = self._newly_dead(tasks)
        learn(
            training,
            groups,
            interrupts,
            began=began,
            unused={"stale": ready.stale},
            given_up=given_up,
            dead=len(self._given_up),
            reuse=reuse,
        )

    def _newly_dead(self, tasks: TaskOrder) -> dict[int, list[str]]:
        """Positions that are given out no more, with what went wrong each time, of which that was not said yet."""
        dead = {each.order: each.reasons for each in self._store.dead()}
        new = {order: [why[:LONGEST_REASON] for why in dead[order]] for order in dead.keys() - self._given_up}
        for order, why in new.items():
            name = tasks.task(order).task_id
            logger.warning("task {} (position {}) is given up after {} attempts: {}", name, order, len(why), why[-1])
        self._given_up = set(dead)
        return new

    def _wait(self, training: Training, there: int, size: int) -> None:
        self._announce(training)
        self._watch()
        now = time.monotonic()
        if now - self._told > TOLD_EVERY:
            self._told = now
            self._store.join("trainer", self._run.run_id, {"step": training.step})
            samplers = [each for each in self._store.members() if each.role == "sampler" and each.age < 2 * TOLD_EVERY]
            logger.info(
                "step {}: {} of {} groups are there, {} too old; {} samplers are at work",
                training.step + 1,
                there,
                size,
                self._stale,
                len(samplers),
            )
        time.sleep(LOOK)

    def _announce(self, training: Training, *, over: bool = False) -> None:
        """The present policy, where what may be played has changed with it or with positions that are over."""
        depths = self._store.depths()
        open_ones = depths.waiting + depths.leased + depths.closed - self._stale
        below = max(self._below, depths.next - open_ones + self._ahead)
        if below == self._below and not over:
            return
        self._below = below
        version = training.parts.backbone.version
        policy = self._terms.policy(
            self._run.run_id,
            training.step,
            version,
            self._weights(training.step),
            below,
            over=over,
            began=self._began,
            more={PROBE: self._probe.told(), MOST: training.parts.experiment.ajet.trainer_common.max_staleness},
        )
        self._store.announce(policy)

    def _weights(self, step: int) -> Path | None:
        """None: those of model.path."""
        own = self._run.checkpoints.folder / f"step-{step}"
        if own.exists():
            return own.absolute()
        return self._run.resumed.path.absolute() if self._run.resumed is not None else None


def ahead(settings: AjetConfig) -> int:
    """Groups that may be under way or wait to be trained on for the first time: one that is begun as the last of them
    is so after `max_staleness` steps, if all end in order and each is trained on as often as it may be."""
    trainer, size = settings.trainer_common, settings.data.train_batch_size
    if trainer.max_staleness is None:
        return BACKLOG * size
    return max(size, math.ceil(size * (trainer.max_staleness + 1) / trainer.algorithm.max_trained_count))


def _usable(repeats: int, step: int) -> Callable[[Sequence[Kept]], bool]:
    """Whether a trainer that goes on after `step` takes a position's attempts as they are. It is played anew where one
    names a policy that only a lost checkpoint had, since another gets that number; and where all of a group failed: a
    run that ended with that would end with it again."""

    def usable(kept: Sequence[Kept]) -> bool:
        episodes = [one.episode for one in kept]
        return newest(episodes, 0) <= step and (len(episodes) < repeats or not all_failed(episodes))

    return usable
