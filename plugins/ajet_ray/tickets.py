"""Tickets: assign tasks to the rows of verl's data set.

verl's data set only counts rows. The run's store (the database of its groups) assigns a task when the episodes of a
row are about to run. A ticket is the trainer's claim on one group, numbered from 0 in each launch. A position is a
task's place in the training order. Invariant: ticket k of a launch is the k-th position leased by the launch: first
groups finished by an earlier launch but never trained (handed over unchanged, if the launch's first weights could have
sampled them), then begun positions, then new positions. Each position ends once, in a step: trained, without a score,
or too old for verl.
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
from ajet_ray.modes import SYNC

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.task_reader import TaskOrder

ROWS, QUEUE = "data.pt", "transfer_queue"
"""Files of verl's checkpoint: the number of taken rows, and the queue of untrained ones."""
DEADLY = "each process that ran its group died"
"""The reason for giving up a position."""
AHEAD = 2
"""Number of batches leased ahead of the requests, so that no process waits for the run's own process."""


def find_drop_age(config: Mapping[str, Any]) -> int | None:
    """Return for how many steps verl stores a group, the requesting step included, or None without a limit.

    Args:
        config: verl's config.
    """
    v1 = config["trainer"]["v1"]
    sampler = v1["sampler"]
    drops = v1["trainer_mode"] != SYNC and sampler["max_off_policy_strategy"] == "drop"
    return sampler["max_off_policy_threshold"] if drops else None


def find_oldest_version(config: Mapping[str, Any], step: int) -> int:
    """Return the lowest policy version whose samples a resumed run may train on when it continues after `step`.

    Args:
        config: verl's config.
        step: last step of the resumed checkpoint.
    """
    if config["actor_rollout_ref"]["rollout"].get("enable_rollout_routing_replay"):
        return step + 1  # excludes all earlier groups: stored episodes have no experts, which verl would replay
    if config["trainer"]["v1"]["trainer_mode"] == SYNC:
        return step
    staleness_limit = find_drop_age(config)
    # verl counts the requesting step too, so a limit of 1 allows only the version after `step`.
    return 0 if staleness_limit is None else step + 1 - staleness_limit


def open_verl_store(run: RunDirectory, order: TaskOrder, *, sessions: int, oldest: int = 0) -> Store:
    """Open the run's store in the state of its resumed checkpoint.

    Args:
        order: the training order of the tasks.
        sessions: number of episodes per group.
        oldest: lowest policy version whose samples may be trained (`find_oldest_version`).

    Raises:
        TaskError: the checkpoint was made over other tasks.
    """
    usable = _make_usable_check(sessions, oldest, run.resumed.step if run.resumed else 0, run.run_id)
    open_at = partial(
        open_store,
        run.experiment,
        run.path,
        pending=run.path / "pending",
        ledger=run.run_id,
        redact=run.redact,
        usable=usable,
    )
    if run.resumed is None:
        return open_at(at=None)
    frontier = run.resumed.state["frontier"]
    order.require_same(frontier)
    return open_at(at=dict(frontier))


def _make_usable_check(sessions: int, oldest: int, newest: int, run_id: str) -> Callable[[Sequence[Kept]], bool]:
    """Return a function that decides whether a resumed run may train on a group that was finished before the resume.

    Args:
        sessions: number of episodes that the group must have.
        oldest: lowest allowed policy version of a sample.
        newest: highest allowed policy version: the resumed one, since later updates were lost.
        run_id: only episodes of this run count.
    """

    def usable(entries: Sequence[Kept]) -> bool:
        """True if all episodes of the group are stored, at least one is scored, and all were sampled by allowed policy
        versions.
        """
        episodes = [entry.episode for entry in entries if entry.episode.run == run_id]
        spans = [span for episode in episodes if (span := episode.policy) is not None]
        fits = all(oldest <= span.low and span.high <= newest for span in spans)
        return fits and len(episodes) == sessions and any(episode.scored for episode in episodes)

    return usable


@dataclass(frozen=True, slots=True)
class TicketGroups:
    """The groups that a training step ends: used, without a score, or too old."""

    over: list[Group]
    """Trained groups, and groups without a scored episode."""
    stale: list[Group]
    """Untrained groups that are too old for a later step."""
    retrained: Collection[int] = ()
    """Positions in `over` that an earlier step had trained, too."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Positions that failed too often since the last step, with the reason of each failure."""
    dead: int = 0
    """Number of positions given up in the whole run."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Number of groups unusable for training, by kind."""


class LaunchTickets:
    """Assigns tasks, in training order, to the tickets of a launch: the trainer's claims on one group each."""

    def __init__(self, store: Store, order: TaskOrder, *, batch: int, dropped_after: int | None = None) -> None:
        """Start without tickets (the trainer's claims on groups, numbered in each launch of the run).

        Args:
            store: the run's groups. Those finished by earlier launches and never trained are handed over first.
            order: the training order of the tasks.
            batch: number of tasks of a step.
            dropped_after: steps for which verl stores a group (`find_drop_age`), or None without a limit.
        """
        self._store, self._order = store, order
        self._dead_letters = DeadLetterLog(store)
        self._max_ahead, self._dropped_after = AHEAD * batch, dropped_after
        self._handed_over: list[Lease] | None = None
        """Groups finished by earlier launches. None before the first check."""
        self._lease_of_ticket: list[Lease] = []
        """Leases of positions, by ticket."""
        self._ticket_of_position: dict[int, int] = {}
        """Ticket of each position that no step has taken yet."""
        self._last_requested = -1
        self._steps: dict[int, int] = {}
        """Requesting step by position, for groups finished or handed over by the launch."""
        self._given_up_positions: dict[int, list[str]] = {}
        """Given-up positions and reasons, not yet in a row of metrics."""
        self._failed_count = 0
        """Number of positions given up."""

    def note_request(self, ticket: int) -> None:
        """Record that a process requested the task of a ticket (the trainer's claim on one group), by its number.

        Tickets are granted some way ahead of the last requested one.
        """
        self._last_requested = max(self._last_requested, ticket)

    def list_grants(self) -> list[TicketGrant]:
        """Lease tasks for further tickets (the trainer's claims on groups), and return the tickets' tasks.

        Up to two batches of tickets are granted before a process requests them, so that no process waits.
        """
        return [
            self._grant_next() for _ in range(len(self._lease_of_ticket), self._last_requested + 1 + self._max_ahead)
        ]

    @property
    def missing_groups(self) -> int:
        """Number of groups that the trainer has requested and no remote sampler has finished. 0 without samplers."""
        return 0

    @property
    def can_fill_missing(self) -> bool:
        """True if groups in flight at remote samplers can answer all waiting requests. False without samplers."""
        return False

    def close(self, group: Group, step: int) -> bool:
        """Store a finished group's episodes, and record which training step requested the group.

        Returns:
            False if the group was stored before.
        """
        if group.order in self._steps:
            return False
        self._steps[group.order] = step
        lease = self._lease_of_ticket[self._ticket_of_position[group.order]]
        self._store.put(lease, *(Kept(episode) for episode in group.episodes))
        self._store.close(lease)
        return True

    def give_up(self, ticket: int, step: int) -> None:
        """Discard the task of a ticket (the trainer's claim on a group), since every process that ran it died.

        Args:
            step: training step that records the discard.
        """
        order = self._lease_of_ticket[ticket].order
        self._store.discard([order], step, "failed")
        self._ticket_of_position.pop(order, None)
        self._given_up_positions[order] = [DEADLY]
        self._failed_count += 1

    def take_step(self, step: int, credited: Mapping[str, CreditEntry]) -> TicketGroups:
        """Record a step's use of groups in the store, and return these groups.

        The groups are those that the step trained, those without a scored episode, and those too old for a later step.

        Args:
            credited: the step's credit by episode uuid; a group with a credited episode was trained.
        """
        groups = self._list_closed()
        finished = [
            group for group in groups if not group.scored or any(episode.uuid in credited for episode in group.episodes)
        ]
        trained = {group.order for group in finished}
        stale = [group for group in groups if group.order not in trained and self._is_too_old(group, step)]
        self._store.use((group.order for group in finished if group.scored), step)
        self._store.discard((group.order for group in finished if not group.scored), step, "no_score")
        self._store.discard((group.order for group in stale), step, "stale")
        for group in (*finished, *stale):
            del self._steps[group.order]
            del self._ticket_of_position[group.order]
        # Dead letters: positions whose attempts failed too often. The others killed the processes that ran them.
        given_up = self._dead_letters.log_new(self._order) | self._given_up_positions
        self._given_up_positions = {}
        return TicketGroups(finished, stale, given_up=given_up, dead=self._dead_letters.count + self._failed_count)

    def list_open(self) -> list[int]:
        """List the places in the training order of granted tasks whose groups no training step has used yet."""
        return list(self._ticket_of_position)

    def list_waiting(self) -> list[int]:
        """List the places in the training order of finished groups that no training step has used yet."""
        return [lease.order for lease in self._store.closed()]

    def list_begun(self) -> list[int]:
        """List the places in the training order of leased tasks whose groups no training step has used yet."""
        return self._store.begun()

    def list_dead(self) -> list[int]:
        """List the places in the training order of tasks given up, because their attempts failed too often."""
        return [letter.order for letter in list_dead_letters(self._store)]

    def commit(self) -> dict[str, Any]:
        """Return the state of store and task order for the next checkpoint, as JSON values."""
        return {**self._store.commit(), **self._order.identity()}

    def forget(self, step: int) -> None:
        """Drop the store's data of task positions that ended at or before a step.

        Args:
            step: a step with a checkpoint, so that no resume needs the data.
        """
        self._store.forget(step)

    def complete(self, checkpoint: Path, verls: Path) -> None:
        """Add files to a new checkpoint. This class adds none.

        Args:
            checkpoint: folder of the new checkpoint.
            verls: the folder in it with verl's own files.
        """

    def finish_run(self) -> None:
        """Does nothing: only a store shared with remote samplers must be left after the last step's checkpoint."""

    def _grant_next(self) -> TicketGrant:
        """Lease a task for the next ticket (the trainer's claim on a group), and return it.

        Groups finished by earlier launches come first and are granted with their episodes, then task positions to play.
        """
        if self._handed_over is None:
            self._handed_over = self._store.closed()
        if self._handed_over:
            lease = self._handed_over.pop(0)
        else:
            (lease,) = self._store.lease(1)
        self._ticket_of_position[lease.order] = len(self._lease_of_ticket)
        self._lease_of_ticket.append(Lease(lease.order, lease.fence))  # without the episodes, to save memory
        return TicketGrant(lease.order, self._order.task(lease.order), _build_group(lease) if lease.attempts else None)

    def _list_closed(self) -> list[Group]:
        """List the finished groups that were sent to the trainer and that no training step has used yet."""
        return [_build_group(lease) for lease in self._store.closed() if lease.order in self._steps]

    def _is_too_old(self, group: Group, step: int) -> bool:
        """True if verl has dropped a finished group at a step because of its age.

        By verl's count a group requested by step N is one step old in step N.
        """
        return self._dropped_after is not None and step - self._steps[group.order] + 1 > self._dropped_after


def _build_group(lease: Lease) -> Group:
    """Return the episodes stored under a lease as a group."""
    episodes = [stored.episode for stored in lease.attempts]
    return Group(episodes[0].task, lease.order, episodes)


def drop_rows(checkpoint: Path) -> None:
    """Remove the count of taken rows and the queue of untrained rows from a folder that verl saved.

    A resumed launch numbers its rows from 0 again and gets untrained groups from the run's store.
    """
    (checkpoint / ROWS).unlink(missing_ok=True)
    shutil.rmtree(checkpoint / QUEUE, ignore_errors=True)
