"""Sampler: leases positions of a shared store, plays their groups, keeps each attempt as it ends, closes what is whole.

Invariants: an attempt that has ended by itself is put before anything else is done with it, and none that was cut
short ever is; a group is closed once all its attempts are put; what is not finished is given back with what was put of
it, whatever ended the sampler, or, where this process is killed, ends with its lease: either way another sampler plays
the rest. What was lost to another is not played on. Nothing is leased that the trainer does not want yet
(`Policy.below`), so how old a group can get is bounded before it is begun.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.backbone.decoupled.terms import BEGAN, MOST, OVER, PROBE, SERVER
from ajet.engine.followed import server_of
from ajet.engine.probe import Probe
from ajet.record.console import counted
from ajet.schema.episode import Episode, Group
from ajet.schema.errors import AjetError, UserError
from ajet.store import CANNOT_NOW, Kept, Lease, LeaseLost
from ajet.store.signs_of_life import signs_of_life

if TYPE_CHECKING:
    from ajet.backbone.following import FollowingBackbone
    from ajet.store.shared import Announced, Policy, SharedStore
    from ajet.task_reader import TaskOrder
    from ajet.train.interrupts import Interrupts
    from ajet.train.parts import Parts

LOOK = 0.25
"""Seconds between two looks at the store for a newer policy and for positions."""
LONGEST_LOAD = 3600.0
"""Seconds of loading weights after which a sampler is taken to hang: what it holds ends with its leases."""
SILENT = 4
"""Times as long as between two signs of life: who said nothing for so long leads no other."""
MISSED = 10.0
"""Seconds between two warnings that announced weights are not there."""


class WentBack(AjetError):
    """The trainer went on from an earlier policy than the one that is sampled with."""


@dataclass(slots=True)
class UnderWay:
    """A group that is being played."""

    lease: Lease
    left: int
    """Attempts that have not ended."""
    playing: Future[Group] | None = None
    """None: all of it was played before."""
    held: list[Kept] = field(default_factory=list)
    """Attempts that are put with the group, since they are compared with each other."""


@dataclass(slots=True)
class Played:
    """The counts of what a sampler has done."""

    groups: int = 0
    episodes: int = 0
    tokens: int = 0
    given_back: int = 0
    lost: int = 0
    """Groups whose lease ended under it."""
    began: float = field(default_factory=time.monotonic)
    """When, by `time.monotonic`."""


class Sampler:
    """Plays groups of a shared store, in this process; not thread-safe."""

    def __init__(
        self,
        parts: Parts,
        backbone: FollowingBackbone,
        store: SharedStore,
        tasks: TaskOrder,
        *,
        name: str,
        played: Played,
        per_minute: float | None = None,
        renew_every: float = 30.0,
    ) -> None:
        """`played` is counted up. `per_minute`: episodes that are begun in a minute, at most. `renew_every`: seconds
        between two signs of life."""
        self._parts, self._backbone, self._store, self._tasks = parts, backbone, store, tasks
        rollout = parts.experiment.ajet.rollout
        self._name, self._repeats, self._most = name, rollout.num_repeat, rollout.max_env_worker
        self._pause = 60.0 * self._repeats / per_minute if per_minute else 0.0
        self._renew_every = renew_every
        self._server = server_of(parts.experiment.ajet)
        self._draining = False
        """Then it leads nobody, and takes what others give the server."""
        self._compares = parts.judge.ranks is not None
        self._events: queue.SimpleQueue[tuple[Lease, Episode | Future[Group]]] = queue.SimpleQueue()
        """Of the lease under which it was begun: a position may be lost, and leased here again."""
        self._under_way: dict[int, UnderWay] = {}
        self._policy: Policy | None = None
        self._trainer = 0
        """Who announced it, by number; 0: nobody yet."""
        self._looked = self._renewed = self._begun = -math.inf
        self._gets_more = False
        """Whether the last look found weights to play with, and nobody since found that there are no positions."""
        self._missed = 0.0
        """Since when, or since which warning, announced weights are not to be found; 0: they are."""
        self.played = played

    def play(self, interrupts: Interrupts) -> None:
        """Until the trainer says that it is over. Raises WentBack; KeyboardInterrupt between two looks. Whatever ends
        it, `drain` comes next."""
        while not self._over():
            with interrupts.held():
                self._look()
                self._take_in(LOOK)
                self._begin()

    def drain(self, interrupts: Interrupts, grace: float) -> None:
        """Begin nothing new, take in what ends within `grace` seconds, give the rest back. Raises KeyboardInterrupt
        after that, where a further one cut it short. Others at the same server need not wait for this one: it gives the
        server no more weights, and goes on with those that they give it. A server that is gone, or has none of the
        announced weights, is no error by now: what waits for it is given back."""
        until, follows = time.monotonic() + grace, bool(self._server)
        self._draining = True
        if self._under_way and grace > 0:
            logger.info("waiting up to {:g} s for {} under way", grace, counted(len(self._under_way), "group"))
            if self._server:
                self._live()
        try:
            while self._under_way and (left := until - time.monotonic()) > 0:
                with interrupts.held():
                    self._renew()
                    if follows:
                        follows = self._follow_on(until)
                    self._take_in(min(LOOK, left))
        finally:
            self._take_in(0.0)
            self._give_back()

    def _follow_on(self, until: float) -> bool:
        """What others gave the server is what this one's calls go on with; until then they wait. False: the server
        can't be followed any more."""

        def waits() -> None:
            self._renew()
            if time.monotonic() > until:
                raise TimeoutError

        announced = self._store.announced()
        if announced is None or announced.policy.told.get(OVER):
            return True
        with suppress(WentBack, TimeoutError):  # then what waits for it is given back
            self._require_known(announced)
            try:
                self._follow(announced.policy, waits)
            except UserError as problem:
                logger.warning("the server is not followed any more while what is under way ends: {}", problem.what)
                return False
        return True

    def release(self) -> None:
        """After an error: give back at once what is under way, so that nobody waits until its leases end. A store that
        cannot be asked, which may be the error itself, is no further one."""
        try:
            self._give_back()
        except CANNOT_NOW as problem:
            logger.warning("{} not given back, they end with their leases: {}", len(self._under_way), problem)

    def _give_back(self) -> None:
        for order in list(self._under_way):
            with self._unless_lost(order):
                self._store.give_back([self._under_way[order].lease])
                del self._under_way[order]
                self.played.given_back += 1

    def _over(self) -> bool:
        return self._policy is not None and bool(self._policy.told.get(OVER))

    def _look(self) -> None:
        """Once in a while: the newest policy, a sign of life, and as many groups as there is room for."""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked, self._gets_more = time.monotonic(), False
        announced = self._store.announced()
        if announced is None:
            return
        self._policy = announced.policy
        if self._over():
            return
        self._require_known(announced)
        self._trainer = announced.trainer
        self._gets_more = self._follow(announced.policy) and announced.policy.below != 0  # what was given back, too
        self._renew()
        self._begin()

    def _require_known(self, announced: Announced) -> None:
        """Require that the trainer is the one that was followed, or knows what it had announced. Raises WentBack:
        another one forgot what this version was, and may have another of that number."""
        another = self._trainer not in (0, announced.trainer)
        if another and int(announced.policy.told[BEGAN]) < self._backbone.version:
            raise WentBack

    def _follow(self, policy: Policy, waits: Callable[[], None] | None = None) -> bool:
        """Whether the weights are the announced ones, or the engine's own may be sampled with all the same. Raises
        UserError where they are too old and stay so."""
        version = int(policy.told["version"])
        if version == self._backbone.version:
            return True
        if version < self._backbone.version:
            raise WentBack
        folder = Path(policy.weights) if policy.weights else None
        try:
            with self._renewed_meanwhile():
                probe, leads = Probe.of(policy.told.get(PROBE)), self._leads()
                if probe is None and self._server:
                    raise FileNotFoundError("the trainer has yet to say by what a server that has them is known")
                taken = self._backbone.take(folder, version, probe, waits or self._renew, leads=leads)
        except FileNotFoundError as problem:  # a newer one is announced by now, or about to be
            now = time.monotonic()
            self._missed = self._missed or now
            if now - self._missed > MISSED:
                self._missed = now
                logger.warning(
                    "the weights of step {} are not to be had yet, and nothing is begun before they are: {}",
                    policy.step,
                    problem,
                )
            return False
        self._missed = 0.0
        if not taken:
            _require_young(self._backbone.version, version, policy.told.get(MOST))
            return True
        logger.info("sampling with policy {} (step {})", version, policy.step)
        return True

    def _leads(self) -> bool:
        """Whether it is this process that gives a server elsewhere its weights: the one that has been there longest of
        those that sample from it and are not silent. Two that each think so, since one was stopped and goes on, are
        noticed by the server's name for its weights."""
        if not self._server:
            return True
        if self._draining:
            return False
        there = [
            each
            for each in self._store.members()
            if each.role == "sampler"
            and each.told.get(SERVER) == self._server
            and (each.name == self._name or each.age < SILENT * self._renew_every)
        ]
        first = max(there, key=lambda each: (each.joined, each.name), default=None)
        return first is None or first.name == self._name

    def _renew(self) -> None:
        if time.monotonic() - self._renewed < self._renew_every:
            return
        self._renewed = time.monotonic()
        self._live()
        try:
            self._store.renew([each.lease for each in self._under_way.values()])
        except LeaseLost:
            for order in list(self._under_way):  # which of them, and what is played of those for nobody
                with self._unless_lost(order):
                    self._store.renew([self._under_way[order].lease])

    def _live(self) -> None:
        """A sign of life. Thread-safe."""
        played = self.played
        told: dict[str, float] = {"version": self._backbone.version, "episodes": played.episodes}
        told |= {"tokens": played.tokens, "seconds": round(time.monotonic() - played.began, 3)}
        self._store.join("sampler", self._name, {**told, SERVER: "" if self._draining else self._server})

    def _renewed_meanwhile(self) -> AbstractContextManager[None]:
        """Within the block a thread says that this process lives, and renews what is held: to load weights may take
        longer than a lease is long. A load that hangs holds nothing for ever."""
        leases = [each.lease for each in self._under_way.values()]

        def renew() -> None:
            self._live()
            self._store.renew(leases)

        silent = f"weights are being loaded for {LONGEST_LOAD:g} s: others play on"
        return signs_of_life(renew, self._renew_every, longest=LONGEST_LOAD, silent=silent)

    def _begin(self) -> None:
        """Begin as many groups as there is room for."""
        while self._gets_more and sum(each.left for each in self._under_way.values()) < self._most:
            if time.monotonic() - self._begun < self._pause:
                return
            assert self._policy is not None, "`_look` found one"
            leases = self._store.lease(1, below=self._policy.below)
            if not leases:
                self._gets_more = False
                return
            self._begun = time.monotonic()
            self._play(leases[0])

    def _play(self, lease: Lease) -> None:
        kept = [each.episode for each in lease.kept]
        over = {episode.repeat for episode in kept}
        order, step = lease.order, kept[0].step if kept else self._backbone.version + 1
        self._under_way[order] = UnderWay(lease, self._repeats - len(over))
        if len(over) == self._repeats:  # all was put, and then it was killed
            self._close(order)
            return
        group = self._parts.rollout.play_group(
            order,
            self._tasks.task(order),
            step=step,
            split="train",
            repeats=self._repeats,
            over=over,
            on_end=lambda episode: self._events.put((lease, episode)),
        )
        self._under_way[order].playing = group
        group.add_done_callback(lambda group: self._events.put((lease, group)))

    def _take_in(self, timeout: float) -> None:
        """Take in what has ended, waiting for the first of it."""
        try:
            lease, ended = self._events.get(timeout=timeout) if timeout else self._events.get_nowait()
            while True:
                self._ended(lease, ended)
                lease, ended = self._events.get_nowait()
        except queue.Empty:
            return

    def _ended(self, lease: Lease, ended: Episode | Future[Group]) -> None:
        order = lease.order
        each = self._under_way.get(order)
        if each is None or each.lease.fence != lease.fence:  # its lease was lost
            return
        with self._unless_lost(order):
            if isinstance(ended, Future):
                if (problem := ended.exception()) is not None:
                    del self._under_way[order]
                    self._store.fail(each.lease, f"{type(problem).__name__}: {problem}")
                    return
                if each.held:
                    self._store.put(each.lease, *each.held)
                self._close(order)
                return
            each.left -= 1
            self.played.episodes += 1
            self.played.tokens += ended.sampled_tokens
            kept = Kept(replace(ended, sampler=self._name), ended_by=self._name)
            if self._compares:
                each.held.append(kept)
            else:
                self._store.put(each.lease, kept)

    def _close(self, order: int) -> None:
        with self._unless_lost(order):
            self._store.close(self._under_way[order].lease)
            del self._under_way[order]
            self.played.groups += 1

    @contextmanager
    def _unless_lost(self, order: int) -> Iterator[None]:
        try:
            yield
        except LeaseLost as lost:
            logger.warning("{}: what was played of it here is left out", lost)
            each = self._under_way.pop(order, None)
            if each is not None and each.playing is not None:
                self._parts.rollout.stop_group(each.playing)
            self.played.lost += 1


def _require_young(version: int, announced: int, most: int | None) -> None:
    """Require that weights which stay what they are are not too old. Raises UserError where nothing that they sample
    would be trained on."""
    if most is not None and announced - version > most:
        raise UserError(
            f"The server keeps policy {version}, and the trainer is at {announced}: what it samples would be too old.",
            where="ajet.rollout.vllm.base_url",
            expected=f"weights of at most {most} versions ago (trainer_common.max_staleness)",
            do="start it with VLLM_SERVER_DEV_MODE=1, so that it can be given the checkpoints, or leave base_url out: "
            "ajet sample then starts vLLM itself",
        )
