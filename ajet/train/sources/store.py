"""Groups of a step as they come from samplers elsewhere, through a shared store.

Invariants: a policy is announced only once its checkpoint, with the store's commit, is on the disk: no sampler ever
plays with weights that a killed trainer forgets, and what the next trainer goes on from is what was announced last. A
group older than `trainer_common.max_staleness` is trained on by no step, and no position is given out that could only
become one if all goes in order (`Announcer`). Asked to end (SIGTERM), it waits only for a batch that what is closed and
what is being played can fill; samplers that end with this process begin nothing new from then on, and what they play
may end and be kept, within `trainer_common.grace` in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.algorithm.staleness import announce
from ajet.backbone.canary import Canary
from ajet.backbone.decoupled.announcer import BACKLOG, Announcer, open_for_training, show_in
from ajet.backbone.decoupled.closed_groups import ClosedGroups, Ready, samplers_of
from ajet.backbone.decoupled.quarantine import Quarantine, group_terms
from ajet.backbone.decoupled.terms import PROBE, Terms
from ajet.engine.probe import Probe
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.commands import command
from ajet.schema.episode import Episode, episodes_of
from ajet.train.learn import Elsewhere, FirstHalf, learn
from ajet.train.sources.probing import asked, begun

if TYPE_CHECKING:
    from ajet.backbone.runner import Interrupts
    from ajet.record import RunDirectory
    from ajet.store import Address, SharedStore
    from ajet.task_reader import TaskOrder
    from ajet.train.parts import Parts
    from ajet.train.session import Training

LOOK = 0.25
"""Seconds between two looks for closed groups."""


class FromStore:
    """See `ajet.train.loop.Source`."""

    def __init__(
        self,
        address: Address,
        *,
        watch: Callable[[], None] = lambda: None,
        ends: bool = False,
        on_first: Callable[[Sequence[Episode]], None] = lambda episodes: None,
    ) -> None:
        """`watch` is asked while groups are waited for, and may raise. `ends`: samplers end with this process.
        `on_first` sees the first batch."""
        self._address, self._watch, self._on_first, self.ends = address, watch, on_first, ends
        self._hopes = True
        """See `worth`."""
        self._told: int | None = None
        """The version that was announced last, by this process."""
        self._store: SharedStore
        self._says: Announcer
        self._probe: Probe
        self._run: RunDirectory
        self._began = 0
        self._closed: ClosedGroups
        self._canary: Canary
        self._stale = 0
        """Groups that wait to be discarded with the next step."""

    def open(self, parts: Parts, run: RunDirectory, tasks: TaskOrder, at: Mapping[str, Any] | None) -> SharedStore:
        """Raises UserError."""
        settings = parts.experiment.ajet
        trainer = settings.trainer_common
        announce(trainer, trainer.max_staleness)
        self._run = run
        terms = Terms.of(parts.experiment, parts.backbone.tokenizer, tasks)
        self._store = open_for_training(self._address, run, settings, at)
        conf = str(parts.experiment.yaml_path or "FILE.yaml")
        starts = "" if self.ends else command("sample", "--conf", conf, "--store", self._address.shown)
        self._says = Announcer(self._store, terms, run.run_id, settings, show=show_in(run), starts=starts)
        terms_of_groups = group_terms(parts.experiment, run.run_id, adapters=trainer.lora.adapters)
        self._closed = ClosedGroups(self._store, trainer, Quarantine(self._store, terms_of_groups))
        return self._store

    def begun(self, training: Training) -> None:
        """Announce the weights that the run goes on from, with which samplers play."""
        self._began = training.parts.backbone.version
        with training.parts.backbone.scorer() as scorer:
            rounded = scorer.dtype != "float32"
        self._canary = Canary(training.parts.experiment.ajet.trainer_common.canary, rounded=rounded)
        earlier = self._store.announced()
        self._probe = begun(training.parts, Probe.of(earlier.policy.told.get(PROBE)) if earlier is not None else None)
        self.learned(training)

    def learned(self, training: Training) -> None:
        """Save, and announce what is saved. Raises Fenced where another trains by now."""
        if training.step:
            training.save()
        most = training.parts.experiment.ajet.trainer_common.max_staleness
        self._probe = asked(self._probe, training.parts.backbone, keep=BACKLOG if most is None else most + 1)
        self._says.changed()
        self._announce(training)

    def worth(self) -> bool:
        """Whether it is worth waiting, as of the first look after this process was asked to end: what it then finds may
        just have begun."""
        return self._hopes

    def interrupted(self, training: Training, interrupts: Interrupts) -> None:
        """Let what samplers beside this process play end first, in the time that is left."""
        grace = training.parts.experiment.ajet.trainer_common.grace
        if not self.ends or self._told is None or not interrupts.left(grace):
            return
        self._says.hold()
        if self._told != training.parts.backbone.version:
            self.learned(training)
        while interrupts.left(grace):
            with interrupts.held():
                self._announce(training)
                if not self._says.leased:
                    break
                time.sleep(LOOK)

    def shown(self, training: Training) -> AbstractContextManager[None]:
        """See `Announcer.alive`."""
        return self._says.alive(lambda: training.step)

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
        ready, self._hopes = Ready(), True
        while len(ready.groups) < size:
            with interrupts.held(whole=False):
                self._closed.read(tasks, version)
                ready = self._closed.ready(version, step)
                self._stale = len(ready.stale)
                if len(ready.groups) < size:
                    self._wait(training, len(ready.groups), size, interrupts)
        groups = sorted(ready.groups[:size], key=lambda group: group.order)
        reuse, self._stale = self._closed.take(groups, ready.stale, ready.worn), 0
        self._on_first(episodes_of(groups))
        self._on_first = lambda episodes: None
        refuse_if_all_failed(episodes_of(groups), step)
        given_up = self._says.newly_dead(tasks)  # counts the dead
        elsewhere = Elsewhere(reuse, given_up, self._says.dead, self._says.quarantined)
        played = FirstHalf(began, groups, unused={"stale": ready.stale}, elsewhere=elsewhere)
        gap = learn(training, played, interrupts)
        if gap is not None:  # before it is saved, and announced to whoever else plays
            self._canary.judge(gap, version=version, samplers=samplers_of(groups, version))

    def _wait(self, training: Training, there: int, size: int, interrupts: Interrupts) -> None:
        asked = interrupts.left(training.parts.experiment.ajet.trainer_common.grace) is not None
        if asked and self.ends:
            self._says.hold()
        earlier = self._says.leased
        self._announce(training)
        held = max(earlier, self._says.leased)  # what closed between the two looks is not in `there` yet
        self._hopes = not asked or there + held >= size or (self.ends and held > 0)
        if not asked:  # then samplers may have been asked, too
            self._watch()
        self._says.wait(training.step + 1, there, size, self._stale)
        time.sleep(LOOK)

    def _announce(self, training: Training, *, over: bool = False) -> None:
        """The present policy, where what may be played has changed with it or with positions that are over."""
        self._told = training.parts.backbone.version
        size = training.parts.experiment.ajet.data.train_batch_size
        self._says.announce(
            training.step,
            training.parts.backbone.version,
            self._weights(training.step),
            began=self._began,
            probe=self._probe,
            stale=self._stale,
            wanted=size * max(0, training.total_steps - training.step),
            over=over,
        )

    def _weights(self, step: int) -> Path | None:
        """The folder of the step's weights; None: those of model.path."""
        own = self._run.checkpoints.folder / f"step-{step}"
        if own.exists():
            return own.absolute()
        return self._run.resumed.path.absolute() if self._run.resumed is not None else None
