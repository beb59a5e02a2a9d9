"""Tickets: what a row of verl's stands for. verl's own data set counts rows only; which task one is for is decided
here, by the run's store, when somebody plays it.

Invariant: ticket number k of a launch is for the k-th position that this launch leases: groups first that an earlier
launch played, closed and trained no step on (they are handed over as they are), then what was begun, then the order
goes on. Such a group is handed over only if the weights that the launch begins with could have sampled it. A position
leaves once, with a step: trained there, useless, or too old for verl to train on it any more.
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
from ajet.store.given_up import GivenUp, dead_of
from ajet_ray.mailbox import CreditEntry, TicketGrant
from ajet_ray.modes import SYNC

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.task_reader import TaskOrder

ROWS, QUEUE = "data.pt", "transfer_queue"
"""Of verl's part of a checkpoint: how many rows it took, and what it has of those that nothing was trained on."""
DEADLY = "its group took down each process that played it"
"""Why a position is given up."""
AHEAD = 2
"""Batches of positions that are leased before anybody asks for them: who plays never waits for the record."""


def find_drop_age(config: Mapping[str, Any]) -> int | None:
    """How many steps verl keeps a group for, the one that asked for it included; None: any number. `config`: verl's."""
    v1 = config["trainer"]["v1"]
    sampler = v1["sampler"]
    drops = v1["trainer_mode"] != SYNC and sampler["max_off_policy_strategy"] == "drop"
    return sampler["max_off_policy_threshold"] if drops else None


def find_oldest_version(config: Mapping[str, Any], step: int) -> int:
    """The lowest policy version that may have sampled what a launch trains that goes on after `step`."""
    if config["trainer"]["v1"]["trainer_mode"] == SYNC:
        return step
    most = find_drop_age(config)
    return 0 if most is None else step + 1 - most


def open_verl_store(run: RunDirectory, order: TaskOrder, *, sessions: int, oldest: int = 0) -> Store:
    """The run's, at the checkpoint that it resumes. `sessions`: episodes of a group; `oldest`: see `oldest_version`.
    Raises TaskError where the checkpoint was made over other tasks."""
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
    """Whether a group may be handed over."""

    def usable(entries: Sequence[Kept]) -> bool:
        episodes = [each.episode for each in entries if each.episode.run == run_id]
        spans = [span for episode in episodes if (span := episode.policy) is not None]
        fits = all(oldest <= span.low and span.high <= newest for span in spans)
        return fits and len(episodes) == sessions and any(each.scored for each in episodes)

    return usable


@dataclass(frozen=True, slots=True)
class StepGroups:
    """The groups that leave with a step."""

    over: list[Group]
    """Those that it trained, and those without a score."""
    stale: list[Group]
    """Too old to be trained by a later one."""
    retrained: Collection[int] = ()
    """Positions of the first ones that an earlier step trained, too."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """See `ajet.train.step.TrainedStep`; so is the next."""
    dead: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)


class LaunchTickets:
    """The tickets of one launch."""

    def __init__(self, store: Store, order: TaskOrder, *, batch: int, dropped_after: int | None = None) -> None:
        """`store`: its closed groups may be handed over. `batch`: tasks of a step. `dropped_after`: see there."""
        self._store, self._order = store, order
        self._dead_letters = GivenUp(store)
        self._ahead, self._dropped_after = AHEAD * batch, dropped_after
        self._handed_over: list[Lease] | None = None
        """Groups that had closed before; None: not looked at yet."""
        self._leases: list[Lease] = []
        """By ticket."""
        self._places: dict[int, int] = {}
        """Position -> ticket, of what is not over."""
        self._last_requested = -1
        self._steps: dict[int, int] = {}
        """Position -> the step that asked for it, of groups that this launch closed or handed over."""
        self._deadly: dict[int, list[str]] = {}
        """Positions whose group takes its process down, with why, of which no row says so yet."""
        self._failed_count = 0
        """How many of them there were."""

    def note_request(self, ticket: int) -> None:
        """Somebody is about to play it."""
        self._last_requested = max(self._last_requested, ticket)

    def list_grants(self) -> list[TicketGrant]:
        """The grants of the next tickets, so that there are always some that nobody has asked for."""
        return [self._grant_next() for _ in range(len(self._leases), self._last_requested + 1 + self._ahead)]

    @property
    def missing_groups(self) -> int:
        """How many wait for a ticket's group that is played elsewhere; each step that is over has a checkpoint then."""
        return 0

    @property
    def can_fill_missing(self) -> bool:
        """Whether what is being played elsewhere may fill what is lacking."""
        return False

    def close(self, group: Group, step: int) -> bool:
        """A group is there whole, played or handed over, for a step that asked for it. False: it was before."""
        if group.order in self._steps:
            return False
        self._steps[group.order] = step
        lease = self._leases[self._places[group.order]]
        self._store.put(lease, *(Kept(episode) for episode in group.episodes))
        self._store.close(lease)
        return True

    def give_up(self, ticket: int, step: int) -> None:
        """Give up a ticket whose group takes every process down that plays it."""
        order = self._leases[ticket].order
        self._store.discard([order], step, "failed")
        self._places.pop(order, None)
        self._deadly[order] = [DEADLY]
        self._failed_count += 1

    def take_step(self, step: int, credited: Mapping[str, CreditEntry]) -> StepGroups:
        """The groups that leave with a step whose credit went to the episodes `credited`, by uuid."""
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
        given_up = self._dead_letters.newly(self._order) | self._deadly
        self._deadly = {}
        return StepGroups(over, stale, given_up=given_up, dead=self._dead_letters.count + self._failed_count)

    def list_open(self) -> list[int]:
        """Positions that are leased and not over."""
        return list(self._places)

    def list_waiting(self) -> list[int]:
        """Positions of closed groups that no step has taken yet."""
        return [lease.order for lease in self._store.closed()]

    def list_begun(self) -> list[int]:
        """Positions that were leased once and are not over."""
        return self._store.begun()

    def list_dead(self) -> list[int]:
        """Positions that are given out no more."""
        return [each.order for each in dead_of(self._store)]

    def commit(self) -> dict[str, Any]:
        """The state that the next checkpoint is to hold."""
        return {**self._store.commit(), **self._order.identity()}

    def forget(self, step: int) -> None:
        """The checkpoint of this step is there."""
        self._store.forget(step)

    def complete(self, checkpoint: Path, verls: Path) -> None:
        """`checkpoint` is about to be one of the run: what else it is to hold, beside verl's own part of it."""

    def finish_run(self) -> None:
        """The last step is over, and saved."""

    def _grant_next(self) -> TicketGrant:
        if self._handed_over is None:
            self._handed_over = self._store.closed()
        if self._handed_over:
            lease = self._handed_over.pop(0)
        else:
            (lease,) = self._store.lease(1)
        self._places[lease.order] = len(self._leases)
        self._leases.append(Lease(lease.order, lease.fence))
        return TicketGrant(lease.order, self._order.task(lease.order), _build_group(lease) if lease.kept else None)

    def _list_closed(self) -> list[Group]:
        return [_build_group(lease) for lease in self._store.closed() if lease.order in self._steps]

    def _is_too_old(self, group: Group, step: int) -> bool:
        """Whether a group is too old, as verl counts: one that step N asks for is one step old in step N."""
        return self._dropped_after is not None and step - self._steps[group.order] + 1 > self._dropped_after


def _build_group(lease: Lease) -> Group:
    episodes = [kept.episode for kept in lease.kept]
    return Group(episodes[0].task, lease.order, episodes)


def drop_rows(checkpoint: Path) -> None:
    """verl's part of a checkpoint keeps nothing of rows: a launch that goes on begins to count them anew."""
    (checkpoint / ROWS).unlink(missing_ok=True)
    shutil.rmtree(checkpoint / QUEUE, ignore_errors=True)
