"""GroupSampler: leases task positions of a shared store, runs their attempts, and stores the results.

A position is one place in the training's task order. Its attempts form a group. Invariants: an attempt that ended by
itself is stored first of all. An attempt that was cut short is not stored. A group is closed once all its attempts are
stored. An unfinished group is returned with the stored attempts when the sampler ends, or its lease expires when the
process is killed. Another sampler then runs the rest. A group with a lost lease is not continued. No position is leased
before the trainer wants it (`Policy.below`), so the age of a group is bounded before its start.
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
from ajet.engine.drivers import read_server_address
from ajet.engine.probe import WeightsProbe
from ajet.record.console import counted
from ajet.schema.episode import Episode, Group
from ajet.schema.errors import AjetError, UserError
from ajet.store import TRANSIENT_ERRORS, Kept, Lease, LeaseLostError
from ajet.store.signs_of_life import signs_of_life

if TYPE_CHECKING:
    from ajet.backbone.following import FollowingBackbone
    from ajet.store.shared import AnnouncedPolicy, Policy, SharedStore
    from ajet.task_reader import TaskOrder
    from ajet.train.interrupts import Interrupts
    from ajet.train.parts import RunParts

STORE_POLL_S = 0.25
"""Seconds between two checks of the store for a newer policy and for positions."""
MAX_LOAD_S = 3600.0
"""Seconds of loading weights after which a sampler counts as hanging. Its groups end with their leases."""
SILENT = 4
"""Missed heartbeats after which a sampler leads no others."""
MISSED = 10.0
"""Seconds between two warnings of missing announced weights."""


class PolicyWentBackError(AjetError):
    """The trainer resumed from an earlier policy than the one in the engine."""


@dataclass(slots=True)
class LeasedGroup:
    """A group of attempts that this sampler has leased from the store and is running."""

    lease: Lease
    left: int
    """Number of unfinished attempts of the group."""
    playing: Future[Group] | None = None
    """The running group. None if an earlier sampler has played all its attempts."""
    held: list[Kept] = field(default_factory=list)
    """Attempts to be stored with the group, because a judge compares the attempts."""


@dataclass(slots=True)
class SamplerCounts:
    """How many groups, episodes and tokens one sampler has produced since its start."""

    groups: int = 0
    episodes: int = 0
    tokens: int = 0
    given_back: int = 0
    lost: int = 0
    """Groups whose lease expired before they were finished, so another sampler may play them."""
    began: float = field(default_factory=time.monotonic)
    """Start, by the monotonic clock in seconds."""


class GroupSampler:
    """Leases groups of a shared store, runs their attempts in this process, and stores the results. Not thread-safe."""

    def __init__(
        self,
        parts: RunParts,
        backbone: FollowingBackbone,
        store: SharedStore,
        tasks: TaskOrder,
        *,
        name: str,
        counts: SamplerCounts,
        per_minute: float | None = None,
        renew_every: float = 30.0,
    ) -> None:
        """Args:
        parts: Tasks, workflow, judge and gateway.
        backbone: Engine that follows the trainer's weights.
        store: Where positions are leased and results stored.
        tasks: Maps positions to tasks.
        name: Name of this sampler in the store.
        counts: Counts to increase.
        per_minute: Largest number of episodes started per minute. None: no limit.
        renew_every: Seconds between two renewals of the leases.
        """
        self.parts = parts
        self.backbone = backbone
        self.store = store
        self.tasks = tasks
        rollout = parts.experiment.ajet.rollout
        self._name = name
        self._repeats = rollout.num_repeat
        self.max_attempts = rollout.max_env_worker
        self._pause_between_starts = 60.0 * self._repeats / per_minute if per_minute else 0.0
        self.renew_every = renew_every
        self.server = read_server_address(parts.experiment.ajet)
        self._draining = False
        """True while only finishing groups. The sampler then gives the server no weights, but uses others' weights."""
        self._has_group_judge = parts.judge.ranks is not None
        self._events: queue.SimpleQueue[tuple[Lease, Episode | Future[Group]]] = queue.SimpleQueue()
        """Ended attempts and groups with their lease. This sampler may lease a lost position again."""
        self.under_way: dict[int, LeasedGroup] = {}
        self._policy: Policy | None = None
        self._trainer = 0
        """Number of the trainer that announced the policy, or 0."""
        self._polled_at = self._renewed_at = self._last_start_at = -math.inf
        self._gets_more = False
        """True if the last check found weights to play with, and no lease since failed for lack of positions."""
        self._missed_since = 0.0
        """Time of the first miss of announced weights, or of the last warning. 0 if no weights are missing."""
        self.played = counts

    def play(self, interrupts: Interrupts) -> None:
        """Run groups until the trainer announces the end. The caller must call `drain` next, however this ends.

        Raises:
            PolicyWentBackError: the engine must be opened again.
            KeyboardInterrupt: between two checks.
        """
        while not self._is_over():
            with interrupts.defer():
                self.look_at_store()
                self.take_in(STORE_POLL_S)
                self.begin_groups()

    def drain(self, interrupts: Interrupts, grace: float) -> None:
        """Start no new groups, store attempts that end within `grace` seconds, and return the rest to the store.

        Other samplers of the same server do not wait for this one: it loads no more weights into the server, and
        continues with weights that others load. A server that is gone, or lacks the announced weights, is no error
        here: the groups that wait for it are returned.

        Raises:
            KeyboardInterrupt: after the release, if a further interrupt cut the wait short.
        """
        deadline, follows = time.monotonic() + grace, bool(self.server)
        self._draining = True
        if self.under_way and grace > 0:
            logger.info("waiting up to {:g} s until {} in progress end", grace, counted(len(self.under_way), "group"))
            if self.server:
                self._join_store()
        try:
            while self.under_way and (remaining := deadline - time.monotonic()) > 0:
                with interrupts.defer():
                    self.renew_leases()
                    if follows:
                        follows = self.follow_server(deadline)
                    self.take_in(min(STORE_POLL_S, remaining))
        finally:
            self.take_in(0.0)
            self._give_back()

    def follow_server(self, until: float) -> bool:
        """Continue with the weights that other samplers load into the server, without loading any.

        Calls to the server wait for the weights meanwhile.

        Args:
            until: Monotonic time at which waiting ends.

        Returns:
            False if the server cannot be followed any more.
        """

        def renew_while_waiting() -> None:
            self.renew_leases()
            if time.monotonic() > until:
                raise TimeoutError

        announced = self.store.announced()
        if announced is None or announced.policy.told.get(OVER):
            return True
        # If the wait fails, groups waiting for the weights are returned.
        with suppress(PolicyWentBackError, TimeoutError):
            self._require_known_version(announced)
            try:
                self._follow_policy(announced.policy, renew_while_waiting)
            except UserError as error:
                logger.warning(
                    "the sampler stops loading weights into the server while its last groups end: {}", error.what
                )
                return False
        return True

    def release(self) -> None:
        """Return all groups in flight to the store after an error, instead of letting their leases expire.

        An unreachable store, possibly the error itself, is only logged.
        """
        try:
            self._give_back()
        except TRANSIENT_ERRORS as error:
            logger.warning(
                "{} could not be returned to the store; other samplers get them when the leases end: {}",
                len(self.under_way),
                error,
            )

    def _give_back(self) -> None:
        """Return all groups in flight to the store, with the attempts stored so far."""
        for order in list(self.under_way):
            with self._handle_lost_lease(order):
                self.store.give_back([self.under_way[order].lease])
                del self.under_way[order]
                self.played.given_back += 1

    def _is_over(self) -> bool:
        """Return True if the trainer has announced the end of the training."""
        return self._policy is not None and bool(self._policy.told.get(OVER))

    def look_at_store(self) -> None:
        """Read the newest policy, load its weights, renew leases and start groups, if a check is due."""
        if time.monotonic() - self._polled_at < STORE_POLL_S:
            return
        self._polled_at, self._gets_more = time.monotonic(), False
        announced = self.store.announced()
        if announced is None:
            return
        self._policy = announced.policy
        if self._is_over():
            return
        self._require_known_version(announced)
        self._trainer = announced.trainer
        # A trainer that is about to end announces 0, so that not even returned groups are played.
        self._gets_more = self._follow_policy(announced.policy) and announced.policy.below != 0
        self.renew_leases()
        self.begin_groups()

    def _require_known_version(self, announced: AnnouncedPolicy) -> None:
        """Raise PolicyWentBackError if the trainer may not know the engine's policy version.

        That is so if another trainer resumed from an earlier policy, because it may use the version's number again.
        """
        is_other_trainer = self._trainer not in (0, announced.trainer)
        if is_other_trainer and int(announced.policy.told[BEGAN]) < self.backbone.version:
            raise PolicyWentBackError

    def _follow_policy(self, policy: Policy, waits: Callable[[], None] | None = None) -> bool:
        """Load the announced weights into the engine if possible. Return True if it may sample with the weights it has.

        Args:
            policy: The announced policy.
            waits: Called regularly while loading waits.

        Raises:
            PolicyWentBackError: The announced version is older than the engine's.
            UserError: The engine's weights are too old and cannot be replaced.
        """
        version = int(policy.told["version"])
        if version == self.backbone.version:
            return True
        if version < self.backbone.version:
            raise PolicyWentBackError
        folder = Path(policy.weights) if policy.weights else None
        try:
            with self._renew_while_loading():
                probe, is_leader = WeightsProbe.from_json(policy.told.get(PROBE)), self.is_leader()
                if probe is None and self.server:
                    raise FileNotFoundError(
                        "the trainer has not yet announced the test log-probabilities of these weights"
                    )
                is_loaded = self.backbone.load_weights(
                    folder, version, probe, waits or self.renew_leases, is_leader=is_leader
                )
        except FileNotFoundError as error:  # a newer policy is announced by now, or about to be
            now = time.monotonic()
            self._missed_since = self._missed_since or now
            if now - self._missed_since > MISSED:
                self._missed_since = now
                logger.warning(
                    "the weights of step {} are not available yet, so no group starts: {}",
                    policy.step,
                    error,
                )
            return False
        self._missed_since = 0.0
        if not is_loaded:
            _require_fresh_weights(self.backbone.version, version, policy.told.get(MOST))
            return True
        logger.info("the sampler uses policy version {} (step {})", version, policy.step)
        return True

    def is_leader(self) -> bool:
        """Return True if this process loads weights into a remote server: of its samplers, the one that joined first.

        If a process was stopped and continues, two may lead. The server's name for its weights then shows the conflict.
        """
        if not self.server:
            return True
        if self._draining:
            return False
        members = [
            member
            for member in self.store.members()
            if member.role == "sampler"
            and member.details.get(SERVER) == self.server
            and (member.name == self._name or member.age < SILENT * self.renew_every)
        ]
        leader = max(members, key=lambda member: (member.joined, member.name), default=None)
        return leader is None or leader.name == self._name

    def renew_leases(self) -> None:
        """Renew the leases of all groups in flight, if this is due. Groups with a lost lease are stopped."""
        if time.monotonic() - self._renewed_at < self.renew_every:
            return
        self._renewed_at = time.monotonic()
        self._join_store()
        try:
            self.store.renew([group.lease for group in self.under_way.values()])
        except LeaseLostError:
            for order in list(self.under_way):  # find the group with the lost lease
                with self._handle_lost_lease(order):
                    self.store.renew([self.under_way[order].lease])

    def _join_store(self) -> None:
        """Send a heartbeat with this sampler's counts to the store. Thread-safe."""
        counts = self.played
        member_state: dict[str, float] = {"version": self.backbone.version, "episodes": counts.episodes}
        member_state |= {"tokens": counts.tokens, "seconds": round(time.monotonic() - counts.began, 3)}
        self.store.join("sampler", self._name, {**member_state, SERVER: "" if self._draining else self.server})

    def _renew_while_loading(self) -> AbstractContextManager[None]:
        """Renew leases from a thread within the block, because loading weights may take longer than a lease.

        After `MAX_LOAD_S` the load counts as hanging, and its leases are no longer renewed.
        """
        leases = [group.lease for group in self.under_way.values()]

        def renew() -> None:
            self._join_store()
            self.store.renew(leases)

        silent = f"weights may be loading for {MAX_LOAD_S:g} s: other samplers continue"
        return signs_of_life(renew, self.renew_every, longest=MAX_LOAD_S, silent=silent)

    def begin_groups(self) -> None:
        """Lease positions and start their groups until `max_attempts` attempts are running."""
        while self._gets_more and sum(group.left for group in self.under_way.values()) < self.max_attempts:
            if time.monotonic() - self._last_start_at < self._pause_between_starts:
                return
            assert self._policy is not None, "`look_at_store` has found an announced policy"
            leases = self.store.lease(1, below=self._policy.below)
            if not leases:
                self._gets_more = False
                return
            self._last_start_at = time.monotonic()
            self._play_lease(leases[0])

    def _play_lease(self, lease: Lease) -> None:
        """Start those attempts of a leased group that are not stored yet, or close the group if all are stored."""
        stored_episodes = [attempt.episode for attempt in lease.attempts]
        stored_repeats = {episode.repeat for episode in stored_episodes}
        order, step = lease.order, stored_episodes[0].step if stored_episodes else self.backbone.version + 1
        self.under_way[order] = LeasedGroup(lease, self._repeats - len(stored_repeats))
        if (
            len(stored_repeats) == self._repeats
        ):  # a sampler stored all attempts, and was killed before closing the group
            self._close_group(order)
            return
        group = self.parts.rollout.play_group(
            order,
            self.tasks.task(order),
            step=step,
            split="train",
            repeats=self._repeats,
            finished=stored_repeats,
            on_end=lambda episode: self._events.put((lease, episode)),
        )
        self.under_way[order].playing = group
        group.add_done_callback(lambda group: self._events.put((lease, group)))

    def take_in(self, timeout: float) -> None:
        """Store all attempts and groups that have ended. Wait up to `timeout` seconds for the first one."""
        try:
            lease, event = self._events.get(timeout=timeout) if timeout else self._events.get_nowait()
            while True:
                self._take_event(lease, event)
                lease, event = self._events.get_nowait()
        except queue.Empty:
            return

    def _take_event(self, lease: Lease, ended: Episode | Future[Group]) -> None:
        """Store an ended attempt, or close a group whose attempts have all ended.

        With a judge that ranks the attempts of a group, the attempts are held until the group is ranked.

        Args:
            lease: The lease under which the attempt ran.
            ended: The attempt, or the group's future.
        """
        order = lease.order
        group = self.under_way.get(order)
        if group is None or group.lease.fence != lease.fence:  # the lease was lost
            return
        with self._handle_lost_lease(order):
            if isinstance(ended, Future):
                if (error := ended.exception()) is not None:
                    del self.under_way[order]
                    self.store.fail(group.lease, f"{type(error).__name__}: {error}")
                    return
                if group.held:
                    self.store.put(group.lease, *group.held)
                self._close_group(order)
                return
            group.left -= 1
            self.played.episodes += 1
            self.played.tokens += ended.sampled_tokens
            record = Kept(replace(ended, sampler=self._name), ended_by=self._name)
            if self._has_group_judge:
                group.held.append(record)
            else:
                self.store.put(group.lease, record)

    def _close_group(self, order: int) -> None:
        """Tell the store that all attempts of the group at position `order` are stored."""
        with self._handle_lost_lease(order):
            self.store.close(self.under_way[order].lease)
            del self.under_way[order]
            self.played.groups += 1

    @contextmanager
    def _handle_lost_lease(self, order: int) -> Iterator[None]:
        """Within the block, treat a lost lease: stop the group at position `order`, which another sampler continues."""
        try:
            yield
        except LeaseLostError as error:
            logger.warning("{}: the episodes that this sampler ran for it do not count", error)
            group = self.under_way.pop(order, None)
            if group is not None and group.playing is not None:
                self.parts.rollout.stop_group(group.playing)
            self.played.lost += 1


def _require_fresh_weights(version: int, announced: int, max_staleness: int | None) -> None:
    """Raise UserError if the server's weights cannot be replaced and are too old for training.

    Args:
        version: Policy version of the server's weights.
        announced: The trainer's version.
        max_staleness: Largest allowed difference. None: no limit.
    """
    if max_staleness is not None and announced - version > max_staleness:
        raise UserError(
            f"The server stays at policy version {version}, and the trainer is at version {announced}: samples "
            "of the server would be too old.",
            where="ajet.rollout.vllm.base_url",
            expected=f"weights that are at most {max_staleness} versions old (trainer_common.max_staleness)",
            do="start the server with VLLM_SERVER_DEV_MODE=1, so that it can load new weights; or remove "
            "base_url: then ajet sample starts vLLM itself",
        )
