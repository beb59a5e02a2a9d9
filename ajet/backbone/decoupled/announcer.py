"""The announcer writes the trainer's policy, last usable position and heartbeat to the shared store.

A position is a task's place in the training order. Samplers start only positions below `Policy.below`. Invariant:
positions without a remaining step are never released, nor are positions bound to become stale even if all goes in
order. The caller writes the weights to disk before announcing a policy.
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
"""Maximum number of samplers in the status, longest silent first; the total counts all."""


def build_status(
    depths: StoreDepths, samplers: Sequence[StoreMember], *, free: int, quarantined: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the store's state in the format of `status.json`.

    All ages come from one query of the store, measured by the store's clock. The time of the query is included.
    Unreported values are absent.

    Args:
        depths: The number of positions in each state.
        samplers: the samplers with a recent heartbeat.
        free: positions that samplers may start now.
        quarantined: number of groups that cannot be trained on, by kind.
    """
    counts = {"leased": depths.leased, "free": free, "closed": depths.closed, "again": depths.again}
    ages = {"lease": depths.oldest_lease, "waiting_group": depths.oldest_closed}
    refused = {"quarantined": sum(quarantined.values())} if quarantined else {}
    return {
        "depths": {"samplers": len(samplers), **counts, "dead": depths.dead, **refused},
        "oldest": {name: age for name, age in ages.items() if age is not None},
        "samplers": [
            _describe_sampler(sampler)
            for sampler in sorted(samplers, key=lambda sampler: -sampler.age)[:SHOWN_SAMPLERS]
        ],
        "looked": time.time(),
    }


def _describe_sampler(member: StoreMember) -> dict[str, Any]:
    """Return a sampler's name, leases, seconds since its heartbeat, and the version and speed that it
    reported, if any.
    """
    reported, description = member.details, {"name": member.name, "leases": member.leases, "age": member.age}
    if "version" in reported:
        description["version"] = reported["version"]
    if reported.get("seconds") and "episodes" in reported:
        description["episodes_per_second"] = reported["episodes"] / reported["seconds"]
    return description


BACKLOG = 2
"""Batches that samplers may play before the trainer needs them, if staleness is unlimited."""
HEARTBEAT_S = 30.0
"""Seconds between two heartbeats, and between two log lines about waiting."""
SHOWN_EVERY = 2.0
"""Minimum seconds between two queries of store depths for the status."""


class Announcer:
    """Announces the policies of one trainer. Not thread-safe, except for the heartbeat thread of `alive`."""

    def __init__(
        self,
        store: SharedStore,
        terms: SamplingTerms,
        run_id: str,
        settings: AjetConfig,
        *,
        report_depths: Callable[[dict[str, Any]], None] = lambda state: None,
        sampler_command: str = "",
    ) -> None:
        """Create an announcer without an announced policy.

        Args:
            terms: The settings that samplers must share.
            report_depths: receives the result of `build_status` periodically.
            sampler_command: command that starts a sampler, for a log line. "" to omit the hint.
        """
        self.needs_probe = False
        """True if a sampler at a remote server was present at the last query and needs a probe."""
        self._store = store
        self._terms = terms
        self._run_id = run_id
        self._report_depths = report_depths
        self._sampler_command = sampler_command
        self._shown_at, self._show_lock = -math.inf, threading.Lock()
        self._max_staleness = settings.trainer_common.max_staleness
        self._max_ahead = count_ahead(settings)
        self._order_limit = -1
        self._is_holding_leases = False
        self._last_heartbeat = self.last_wait_log = -math.inf
        self.leased = 0
        """Positions leased by samplers at the last `announce`."""
        self._given_up = DeadLetterLog(store)
        self._looked_dead = 0
        """Number of positions given up after repeated failures (dead letters), at the last query."""

    @property
    def dead(self) -> int:
        """Number of positions that the store leases no more after failures, as of the last `take_newly_dead`."""
        return self._given_up.count

    @property
    def quarantined(self) -> Mapping[str, int]:
        """Number of groups that cannot be trained on, by kind, as of the last read."""
        return self._given_up.quarantined

    def announce(
        self,
        step: int,
        version: int,
        weights: Path | None,
        *,
        first_version: int,
        probe: WeightsProbe | None = None,
        stale: int = 0,
        groups_needed: int | None = None,
        is_last: bool = False,
    ) -> None:
        """Write the policy into the store, unless samplers may start the same positions as before.

        Args:
            step: Number of steps trained so far.
            version: Policy version of the weights.
            weights: folder of the weights. None for the weights of model.path.
            first_version: version from which the trainer started or resumed.
            probe: Log-probabilities of a fixed text, by which a sampler recognises the weights on a server.
            stale: closed groups that no step will train on.
            groups_needed: groups needed by the remaining steps. None if unknown.
            is_last: True for the last policy: the training has ended.
        """
        depths = self._store.depths()
        open_groups = depths.waiting + depths.leased + depths.closed - stale
        allowed = self._max_ahead if groups_needed is None else min(self._max_ahead, groups_needed)
        self.leased = depths.leased
        # Of the `depths.next` positions started, all but `open_groups` are done with. At most `allowed` groups may be
        # open at once. The limit never falls, because samplers may already have started positions below it.
        below = 0 if self._is_holding_leases else max(self._order_limit, depths.next - open_groups + allowed)
        unchanged, self._order_limit = below == self._order_limit, below
        self._show_depths(depths, is_last=is_last)
        if unchanged and not is_last:
            return
        extra_facts: dict[str, Any] = {
            MOST: self._max_staleness,
            **({PROBE: probe.to_json()} if probe is not None else {}),
        }
        policy = self._terms.policy(
            self._run_id,
            step,
            version,
            weights,
            below,
            is_last=is_last,
            first_version=first_version,
            extra_facts=extra_facts,
        )
        self._store.announce(policy)

    def _show_depths(self, depths: StoreDepths | None = None, *, is_last: bool = False) -> None:
        """Show the number of positions in each state, at most every SHOWN_EVERY seconds.

        The same look at the store finds new dead letters, and samplers whose engine is a server of its own: only the
        weights of such a server need a probe.

        Args:
            depths: The numbers. None: query the store.
            is_last: True to show them even right after the previous ones.
        """
        with self._show_lock:
            if time.monotonic() - self._shown_at < SHOWN_EVERY and not is_last:
                return
            self._shown_at = time.monotonic()
            current = depths or self._store.depths()
            # Positions that samplers may lease: those not leased yet, and those given back.
            free = max(0, self._order_limit - current.next) + current.waiting if self._order_limit else 0
            samplers = self._list_samplers()
            self.needs_probe = any(sampler.details.get(SERVER) for sampler in samplers)
            if current.dead != self._looked_dead:
                self._given_up.read_dead_letters()
                self._looked_dead = current.dead
            self._report_depths(build_status(current, samplers, free=free, quarantined=self.quarantined))

    def _list_samplers(self) -> list[StoreMember]:
        """Return all samplers with a recent heartbeat."""
        return [member for member in self._store.members() if member.role == "sampler" and member.age < 2 * HEARTBEAT_S]

    def changed(self) -> None:
        """Have the next `announce` write the policy even if samplers may start the same positions as before."""
        self._order_limit = -1

    def hold(self) -> None:
        """Release no further positions to samplers from the next `announce` on, because the run is about to end."""
        if not self._is_holding_leases:
            self._is_holding_leases = True
            self.changed()

    def live(self, step: int) -> bool:
        """Write a heartbeat of the trainer. Return False if the last one is recent enough.

        Args:
            step: Number of steps trained so far, shown with the heartbeat.
        """
        current_time = time.monotonic()
        if current_time - self._last_heartbeat <= HEARTBEAT_S:
            return False
        self._last_heartbeat = current_time
        self._store.join("trainer", self._run_id, {"step": step})
        return True

    def alive(self, step: Callable[[], int]) -> AbstractContextManager[None]:
        """Within the block, a thread writes heartbeats and shows the status, even if this process is busy.

        Args:
            step: returns the number of steps trained until now.
        """

        def say() -> None:
            self.live(step())
            self._show_depths()

        return signs_of_life(say, min(HEARTBEAT_S, SHOWN_EVERY))

    def wait(self, step: int, available: int, size: int, stale: int) -> None:
        """Write a heartbeat and log that a step waits for groups, at most once per HEARTBEAT_S.

        Args:
            step: Number of the waiting step.
            available: Groups available for it.
            size: Groups that it needs.
            stale: Groups too old for it.
        """
        self.live(step - 1)
        if time.monotonic() - self.last_wait_log <= HEARTBEAT_S:
            return
        self.last_wait_log = time.monotonic()
        samplers = len(self._list_samplers())
        who = f"{counted(samplers, 'sampler')} {'is' if samplers == 1 else 'are'} running"
        who += f": start samplers with `{self._sampler_command}`" if self._sampler_command and not samplers else ""
        refused = sum(self.quarantined.values())
        old = f"{stale} too old" + (f", {refused} quarantined" if refused else "")
        logger.info("step {} waits for groups: {} of {} are complete, {}; {}", step, available, size, old, who)

    def take_newly_dead(self, tasks: TaskOrder) -> dict[int, list[str]]:
        """Return positions that the store leases no more after failures, with the error of each try.

        Only positions that were not returned before are returned.
        """
        return self._given_up.log_new(tasks)


def open_for_training(
    address: Address, run: RunDirectory, settings: AjetConfig, at: Mapping[str, Any] | None
) -> SharedStore:
    """Open the shared store for this run's trainer, rolled back to the state in the checkpoint.

    Raises:
        UserError: the store cannot be opened.
    """
    if settings.rollout.enable_oversample:
        logger.warning("rollout.enable_oversample has no effect here: ajet uses every group that samplers complete")
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
    """Return a function that writes the store's state for `ajet status`."""
    return lambda state: run.status.set(**state)


def count_ahead(settings: AjetConfig) -> int:
    """Return the number of groups that may be in flight or await their first training.

    The last of them, started now, is trained on after `max_staleness` steps if all end in order and each group is
    trained on as often as allowed.
    """
    trainer, size = settings.trainer_common, settings.data.train_batch_size
    if trainer.max_staleness is None:
        return BACKLOG * size
    return max(size, math.ceil(size * (trainer.max_staleness + 1) / trainer.algorithm.max_trained_count))


def _make_usable_check(repeats: int, step: int) -> Callable[[Sequence[Kept]], bool]:
    """Return a function that decides whether a resuming trainer accepts the stored attempts of a position.

    Refused positions are sampled again. An attempt with a policy version of a lost checkpoint is refused, because other
    weights will get the same number. A group in which every attempt failed is refused too: a run that ended with it
    would end again.

    Args:
        repeats: Attempts per group.
        step: Step of the checkpoint.
    """

    def usable(attempts: Sequence[Kept]) -> bool:
        """True if the trainer accepts the attempts of one position."""
        episodes = [attempt.episode for attempt in attempts]
        try:
            for episode in episodes:
                check_values(episode)
        except GroupRefusedError:  # the group is quarantined with its reason once a step takes it
            return True
        return find_newest_version(episodes, 0) <= step and (len(episodes) < repeats or not have_all_failed(episodes))

    return usable
