"""Announcer: what the trainer of a shared store says in it: which policy, up to which position, and that it lives.

Invariant: no position is given out that could only become stale if all goes in order (`Policy.below`), or that no step
is left for; a policy is announced with weights that are on the disk, which its caller sees to.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.backbone.decoupled.closed_groups import find_newest_version
from ajet.backbone.decoupled.terms import MOST, PROBE, SERVER, SamplingTerms
from ajet.record.console import counted
from ajet.rollout.failure import have_all_failed
from ajet.store import Address, GroupRefusedError, check_values, open_shared, recorded_settings, write_store_address
from ajet.store.dead_letters import DeadLetterLog
from ajet.store.signs_of_life import signs_of_life

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ajet.config import AjetConfig
    from ajet.engine.probe import WeightsProbe
    from ajet.record import RunDirectory
    from ajet.store import Kept, SharedStore, StoreDepths, StoreMember
    from ajet.task_reader import TaskOrder

SHOWN_SAMPLERS = 32
"""Samplers that are shown, those that are silent the longest first; all of them are counted."""


def build_status(
    depths: StoreDepths, samplers: Sequence[StoreMember], *, free: int, quarantined: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the store's state as `status.json` has it.

    Ages are as of one look at the store, by its clock, and the look's own time goes with them; a number that nobody
    reported is absent. `free`: positions that samplers may begin now; `samplers`: those that are at work;
    `quarantined`: groups that cannot be trained on, by kind.
    """
    counts = {"leased": depths.leased, "free": free, "closed": depths.closed, "again": depths.again}
    ages = {"lease": depths.oldest_lease, "waiting_group": depths.oldest_closed}
    refused = {"quarantined": sum(quarantined.values())} if quarantined else {}
    return {
        "depths": {"samplers": len(samplers), **counts, "dead": depths.dead, **refused},
        "oldest": {name: age for name, age in ages.items() if age is not None},
        "samplers": [_describe_sampler(each) for each in sorted(samplers, key=lambda each: -each.age)[:SHOWN_SAMPLERS]],
        "looked": time.time(),
    }


def _describe_sampler(member: StoreMember) -> dict[str, Any]:
    reported, found = member.details, {"name": member.name, "leases": member.leases, "age": member.age}
    if "version" in reported:
        found["version"] = reported["version"]
    if reported.get("seconds") and "episodes" in reported:
        found["episodes_per_second"] = reported["episodes"] / reported["seconds"]
    return found


BACKLOG = 2
"""Batches that may be played ahead where no staleness is too much."""
HEARTBEAT_S = 30.0
"""Seconds between two signs of life, and between two lines that say what is waited for."""
SHOWN_EVERY = 2.0
"""Seconds between two looks at depths for those who watch the run, at least."""


class Announcer:
    """Announces one trainer's policies; not thread-safe, but for what the thread of `alive` does."""

    def __init__(
        self,
        store: SharedStore,
        terms: SamplingTerms,
        run_id: str,
        settings: AjetConfig,
        *,
        show: Callable[[dict[str, Any]], None] = lambda state: None,
        starts: str = "",
    ) -> None:
        """`show` gets a `build_status` once in a while. `starts`: the command that starts a sampler; "": nobody need be
        told it."""
        self.needs_probe = False
        """Whether a sampler at a server elsewhere was there at the last look: it needs a probe."""
        self._store, self._terms, self._run_id, self._show, self._starts = store, terms, run_id, show, starts
        self._shown, self._showing = -math.inf, threading.Lock()
        self._most = settings.trainer_common.max_staleness
        self._ahead = count_ahead(settings)
        self._below = -1
        self._holds = False
        self._last_heartbeat = self.last_wait_log = -math.inf
        self.leased = 0
        """Positions that samplers held when this was asked last."""
        self._given_up = DeadLetterLog(store)
        self._looked_dead = 0
        """Dead letters as of the last glance."""

    @property
    def dead(self) -> int:
        """The number of positions that were given up, as of the last `take_newly_dead`."""
        return self._given_up.count

    @property
    def quarantined(self) -> Mapping[str, int]:
        """Groups that could not be trained on, by kind, as of the last look at the dead letters."""
        return self._given_up.quarantined

    def announce(
        self,
        step: int,
        version: int,
        weights: Path | None,
        *,
        began: int,
        probe: WeightsProbe | None = None,
        stale: int = 0,
        wanted: int | None = None,
        over: bool = False,
    ) -> None:
        """Announce that policy, where what may be played has changed since the last time. `weights`: None for those of
        model.path; `began`: the version that this trainer went on from; `stale`: closed groups that no step will train
        on; `wanted`: groups that the steps to come are made of, None: nobody knows how many."""
        depths = self._store.depths()
        open_ones = depths.waiting + depths.leased + depths.closed - stale
        most = self._ahead if wanted is None else min(self._ahead, wanted)
        self.leased = depths.leased
        below = 0 if self._holds else max(self._below, depths.next - open_ones + most)
        unchanged, self._below = below == self._below, below
        self._show_depths(depths, last=over)
        if unchanged and not over:
            return
        more: dict[str, Any] = {MOST: self._most, **({PROBE: probe.to_json()} if probe is not None else {})}
        policy = self._terms.policy(self._run_id, step, version, weights, below, over=over, began=began, more=more)
        self._store.announce(policy)

    def _show_depths(self, depths: StoreDepths | None = None, *, last: bool = False) -> None:
        """Show the store's depths; None: as they are now. `last`: nothing is shown after them."""
        with self._showing:
            if time.monotonic() - self._shown < SHOWN_EVERY and not last:
                return
            self._shown = time.monotonic()
            found = depths or self._store.depths()
            free = max(0, self._below - found.next) + found.waiting if self._below else 0
            samplers = self._list_samplers()
            self.needs_probe = any(each.details.get(SERVER) for each in samplers)
            if found.dead != self._looked_dead:
                self._given_up.read_dead_letters()
                self._looked_dead = found.dead
            self._show(build_status(found, samplers, free=free, quarantined=self.quarantined))

    def _list_samplers(self) -> list[StoreMember]:
        """The samplers that are at work."""
        return [each for each in self._store.members() if each.role == "sampler" and each.age < 2 * HEARTBEAT_S]

    def changed(self) -> None:
        """The policy is another from now on: it is announced whatever the positions are."""
        self._below = -1

    def hold(self) -> None:
        """Let nothing be begun from the next announcement on: this trainer is about to end, and samplers with it."""
        if not self._holds:
            self._holds = True
            self.changed()

    def live(self, step: int) -> bool:
        """Say in the store that this trainer lives, after `step` steps; False where that was done just now."""
        now = time.monotonic()
        if now - self._last_heartbeat <= HEARTBEAT_S:
            return False
        self._last_heartbeat = now
        self._store.join("trainer", self._run_id, {"step": step})
        return True

    def alive(self, step: Callable[[], int]) -> AbstractContextManager[None]:
        """Within the block, whatever this process is busy with, a thread says that this trainer lives, which has
        trained so many steps, and shows how things are."""

        def say() -> None:
            self.live(step())
            self._show_depths()

        return signs_of_life(say, min(HEARTBEAT_S, SHOWN_EVERY))

    def wait(self, step: int, there: int, size: int, stale: int) -> None:
        """Wait a moment for groups of `step`, with a line that says so."""
        self.live(step - 1)
        if time.monotonic() - self.last_wait_log <= HEARTBEAT_S:
            return
        self.last_wait_log = time.monotonic()
        samplers = len(self._list_samplers())
        who = f"{counted(samplers, 'sampler')} {'is' if samplers == 1 else 'are'} at work"
        who += f": start some with `{self._starts}`" if self._starts and not samplers else ""
        refused = sum(self.quarantined.values())
        old = f"{stale} too old" + (f", {refused} quarantined" if refused else "")
        logger.info("step {} waits: {} of {} groups are there, {}; {}", step, there, size, old, who)

    def take_newly_dead(self, tasks: TaskOrder) -> dict[int, list[str]]:
        """Positions that are given out no more, with what went wrong each time, of which that was not said yet."""
        return self._given_up.log_new(tasks)


def open_for_training(
    address: Address, run: RunDirectory, settings: AjetConfig, at: Mapping[str, Any] | None
) -> SharedStore:
    """The store that samplers fill, for this run's trainer, at what a checkpoint holds of it. Raises UserError."""
    if settings.rollout.enable_oversample:
        logger.warning("rollout.enable_oversample has no effect: every group that samplers close is used")
    reached = run.resumed.step if run.resumed is not None else 0
    store = open_shared(
        address,
        at=at,
        rolls=True,
        unreachable_timeout=settings.store.unreachable_timeout,
        run=run.run_id,
        settings=recorded_settings(run.path),
        redact=run.redact,
        usable=_make_usable_check(settings.rollout.num_repeat, reached),
    )
    write_store_address(run.path, address.shown)
    store.join("trainer", run.run_id)
    return store


def make_status_writer(run: RunDirectory) -> Callable[[dict[str, Any]], None]:
    """For `ajet status` of that run."""
    return lambda state: run.status.set(**state)


def count_ahead(settings: AjetConfig) -> int:
    """Groups that may be under way or wait to be trained on for the first time: one that is begun as the last of them
    is so after `max_staleness` steps, if all end in order and each is trained on as often as it may be."""
    trainer, size = settings.trainer_common, settings.data.train_batch_size
    if trainer.max_staleness is None:
        return BACKLOG * size
    return max(size, math.ceil(size * (trainer.max_staleness + 1) / trainer.algorithm.max_trained_count))


def _make_usable_check(repeats: int, step: int) -> Callable[[Sequence[Kept]], bool]:
    """Whether a trainer that goes on after `step` takes a position's attempts as they are. It is played anew where one
    names a policy that only a lost checkpoint had, since another gets that number; and where all of a group failed: a
    run that ended with that would end with it again."""

    def usable(attempts: Sequence[Kept]) -> bool:
        episodes = [attempt.episode for attempt in attempts]
        try:
            for episode in episodes:
                check_values(episode)
        except GroupRefusedError:  # is quarantined, with its reason, once the group is taken
            return True
        return find_newest_version(episodes, 0) <= step and (len(episodes) < repeats or not have_all_failed(episodes))

    return usable
