"""Tickets: the tasks of verl's rows. verl's data set only counts rows; the run's store assigns a task when a row is
played.

A ticket is the trainer's claim on one group, numbered from 0 in each launch. A position is a task's place in the
training order. Invariant: ticket k of a launch is the k-th position leased by the launch: first groups closed by an
earlier launch but never trained (handed over unchanged, if the launch's first weights could have sampled them), then
begun positions, then new positions. Each position ends once, in a step: trained, without a score, or too old for verl.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import Group
from ajet.store import Kept, Lease, Store, open_store
from ajet.store.dead_letters import DeadLetterLog, list_dead_letters
from ajet_ray.mailbox import CreditEntry, TicketGrant
from ajet_ray.resolvers import SYNC

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.task_reader import TaskOrder

ROWS, QUEUE = "data.pt", "transfer_queue"
"""Files of verl's checkpoint: the number of taken rows, and the queue of untrained ones."""
DEADLY = "each process that ran its group died"
"""The reason for giving up a position."""
AHEAD = 2
"""Batches of positions leased ahead, so that players never wait for the record."""


def find_drop_age(config: Mapping[str, Any]) -> int | None:
    """Return how many steps verl stores a group, including the requesting step. None: any number.

    Args:
        config: verl's config.
    """
    v1 = config["trainer"]["v1"]
    sampler = v1["sampler"]
    drops = v1["trainer_mode"] != SYNC and sampler["max_off_policy_strategy"] == "drop"
    return sampler["max_off_policy_threshold"] if drops else None


def find_oldest_version(config: Mapping[str, Any], step: int) -> int:
    """Return the lowest policy version allowed in samples of a launch continuing after `step`."""
    if config["actor_rollout_ref"]["rollout"].get("enable_rollout_routing_replay"):
        return step + 1  # no earlier group is used: records have no experts to replay
    if config["trainer"]["v1"]["trainer_mode"] == SYNC:
        return step
    most = find_drop_age(config)
    return 0 if most is None else step + 1 - most


def open_verl_store(run: RunDirectory, order: TaskOrder, *, sessions: int, oldest: int = 0) -> Store:
    """Open the run's store at its resumed checkpoint. `sessions`: episodes per group; `oldest`: see
    `find_oldest_version`.

    Raises TaskError if the checkpoint was made over other tasks.
    """
    usable = _make_usable_check(sessions, oldest, run.resumed.step if run.resumed else 0, run.run_id)
    opened = partial(
        open_store,
        run.experiment,
        run.path,
        pending=run.path / "pending",
        ledger=run.run_id,
        redact=run.redact,
        usable=usable,
    )
    if run.resumed is None:
        return opened(at=None)
    frontier = run.resumed.state["frontier"]
    order.require_same(frontier)
    return opened(at=dict(frontier))


def _make_usable_check(sessions: int, oldest: int, newest: int, run_id: str) -> Callable[[Sequence[Kept]], bool]:
    """Return a check for groups that may be handed over."""

    def usable(entries: Sequence[Kept]) -> bool:
        episodes = [each.episode for each in entries if each.episode.run == run_id]
        spans = [span for episode in episodes if (span := episode.policy) is not None]
        fits = all(oldest <= span.low and span.high <= newest for span in spans)
        return fits and len(episodes) == sessions and any(each.scored for each in episodes)

    return usable


@dataclass(frozen=True, slots=True)
class TicketGroups:
    """The groups consumed by a step."""

    over: list[Group]
    """Trained groups, and groups without a score."""
    stale: list[Group]
    """Groups too old for a later step."""
    retrained: Collection[int] = ()
    """Positions in `over` trained by an earlier step, too."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """As in `ajet.train.step.TrainedStep`, like the next field."""
    dead: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)


class LaunchTickets:
    """The tickets of a launch, granted in training order."""

    def __init__(self, store: Store, order: TaskOrder, *, batch: int, dropped_after: int | None = None) -> None:
        """Start without tickets.

        Args:
            store: closed groups of earlier launches in the store are handed over first.
            batch: number of tasks of a step.
            dropped_after: steps for which verl stores a group (`find_drop_age`).
        """
        self._store, self._order = store, order
        self._dead_letters = DeadLetterLog(store)
        self._ahead, self._dropped_after = AHEAD * batch, dropped_after
        self._handed_over: list[Lease] | None = None
        """Groups finished by earlier launches. None before the first check."""
        self._leases: list[Lease] = []
        """Leases of positions, by ticket."""
        self._places: dict[int, int] = {}
        """Tickets, by the unfinished position."""
        self._last_requested = -1
        self._steps: dict[int, int] = {}
        """Requesting step by position, for groups finished or handed over by the launch."""
        self._deadly: dict[int, list[str]] = {}
        """Given-up positions and reasons, not yet in a row of metrics."""
        self._failed_count = 0
        """Number of positions given up."""

    def note_request(self, ticket: int) -> None:
        """Note that a process is about to play the ticket, so that further tickets are granted in time."""
        self._last_requested = max(self._last_requested, ticket)

    def list_grants(self) -> list[TicketGrant]:
        """Lease positions for the next tickets and return their grants.

        Some tickets are granted before a process requests them, so that no process waits.
        """
        return [self._grant_next() for _ in range(len(self._leases), self._last_requested + 1 + self._ahead)]

    @property
    def missing_groups(self) -> int:
        """Number of requests waiting for remote groups. Every finished step then has a checkpoint."""
        return 0

    @property
    def can_fill_missing(self) -> bool:
        """True if groups in flight can fill the missing groups."""
        return False

    def close(self, group: Group, step: int) -> bool:
        """Record a complete group for its requesting step. Return False for an already recorded group."""
        if group.order in self._steps:
            return False
        self._steps[group.order] = step
        lease = self._leases[self._places[group.order]]
        self._store.put(lease, *(Kept(episode) for episode in group.episodes))
        self._store.close(lease)
        return True

    def give_up(self, ticket: int, step: int) -> None:
        """Give up a ticket because its group kills every process that plays the group."""
        order = self._leases[ticket].order
        self._store.discard([order], step, "failed")
        self._places.pop(order, None)
        self._deadly[order] = [DEADLY]
        self._failed_count += 1

    def take_step(self, step: int, credited: Mapping[str, CreditEntry]) -> TicketGroups:
        """End the positions that this step trained, could not score or found too old; return their groups.

        Args:
            credited: the step's credit by episode uuid; a group with a credited episode was trained.
        """
        groups = self._list_closed()
        over = [
            group for group in groups if not group.scored or any(episode.uuid in credited for episode in group.episodes)
        ]
        trained = {group.order for group in over}
        stale = [group for group in groups if group.order not in trained and self._is_too_old(group, step)]
        self._store.use((group.order for group in over if group.scored), step)
        self._store.discard((group.order for group in over if not group.scored), step, "no_score")
        self._store.discard((group.order for group in stale), step, "stale")
        for group in (*over, *stale):
            del self._steps[group.order]
            del self._places[group.order]
        given_up = self._dead_letters.log_new(self._order) | self._deadly
        self._deadly = {}
        return TicketGroups(over, stale, given_up=given_up, dead=self._dead_letters.count + self._failed_count)

    def list_open(self) -> list[int]:
        """List the leased positions without a finished group."""
        return list(self._places)

    def list_waiting(self) -> list[int]:
        """List positions of closed groups not yet taken by a step."""
        return [lease.order for lease in self._store.closed()]

    def list_begun(self) -> list[int]:
        """List positions leased once and unfinished."""
        return self._store.begun()

    def list_dead(self) -> list[int]:
        """List positions that are not given out any more."""
        return [each.order for each in list_dead_letters(self._store)]

    def commit(self) -> dict[str, Any]:
        """Return the state for the next checkpoint."""
        return {**self._store.commit(), **self._order.identity()}

    def forget(self, step: int) -> None:
        """Forget old positions once the step's checkpoint exists."""
        self._store.forget(step)

    def complete(self, checkpoint: Path, verls: Path) -> None:
        """Add files to the new checkpoint, besides verl's own files in `verls`; nothing to add here."""

    def finish_run(self) -> None:
        """Finish the tickets after the checkpoint of the last step; nothing to do here."""

    def _grant_next(self) -> TicketGrant:
        if self._handed_over is None:
            self._handed_over = self._store.closed()
        if self._handed_over:
            lease = self._handed_over.pop(0)
        else:
            (lease,) = self._store.lease(1)
        self._places[lease.order] = len(self._leases)
        self._leases.append(Lease(lease.order, lease.fence))
        return TicketGrant(lease.order, self._order.task(lease.order), _build_group(lease) if lease.attempts else None)

    def _list_closed(self) -> list[Group]:
        return [_build_group(lease) for lease in self._store.closed() if lease.order in self._steps]

    def _is_too_old(self, group: Group, step: int) -> bool:
        """True if a group is too old by verl's count: a group requested by step N is one step old in step N."""
        return self._dropped_after is not None and step - self._steps[group.order] + 1 > self._dropped_after


def _build_group(lease: Lease) -> Group:
    episodes = [stored.episode for stored in lease.attempts]
    return Group(episodes[0].task, lease.order, episodes)


def drop_rows(checkpoint: Path) -> None:
    """Remove rows from verl's part of a checkpoint: a resumed launch counts them anew."""
    (checkpoint / ROWS).unlink(missing_ok=True)
    shutil.rmtree(checkpoint / QUEUE, ignore_errors=True)
