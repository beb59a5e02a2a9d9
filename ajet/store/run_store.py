"""RunStore: the store of one process, in the folder of its run.

A position is a task's place in the training order. Invariant: a put episode stays in `pending/`, a file per position
in the format of `episodes/`, until every loadable checkpoint knows the position's use. Positions exist only in memory
and in the checkpoint, so a kill leaves the checkpoint's state plus episodes that the checkpoint does not know. The
run's lock excludes a second writer; a lease ends with the process. A changed file makes the start fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet.record.episodes import EpisodeFiles, matches_digest, open_arrays
from ajet.record.files import read_lines
from ajet.record.secrets import Redactor
from ajet.schema.episode import UntrainedReason
from ajet.schema.errors import UserError
from ajet.store.contract import Kept, Lease, LeaseLostError
from ajet.store.digest import AlteredEpisodeError, explain_alteration


class PositionQueue:
    """The positions of the training order in memory: next, leased and waiting (leased before and free again).

    Invariant: every position below `next` that is neither leased nor waiting is over, and no position is leased twice.
    Positions of clients count down from -1. Not thread-safe: the store holds the lock. A fence is the number of a
    lease, by which a stale lease is recognised.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Restore the queue from the value of `state` in a checkpoint. None: an empty queue."""
        state = state or {}
        self._next = int(state.get("next", 0))
        self._client_task_count = int(state.get("brought", 0))
        self._waiting_orders = {int(order) for order in state.get("unfinished", ())}
        self._fence_by_order: dict[int, int] = {}
        self._fence = 0

    def take(self, count: int) -> list[Lease]:
        """Lease the next `count` positions of the training order: first those leased before and free again, then new
        ones.
        """
        waiting_orders = sorted(order for order in self._waiting_orders if order >= 0)[:count]
        new_orders = range(self._next, self._next + count - len(waiting_orders))
        self._next = new_orders.stop
        return [self._lease_position(order) for order in (*waiting_orders, *new_orders)]

    def bring(self) -> Lease:
        """Lease a new position for a client's own task, outside the training order: the next number below zero."""
        self._client_task_count += 1
        return self._lease_position(-self._client_task_count)

    def offer(self, order: int) -> bool:
        """Mark a position as waiting, because its episodes were found on disk. Return False if it is over or leased.

        Earlier positions that were never leased are marked, too, because `next` moves past them.
        """
        if order in self._fence_by_order:
            return False
        if order < 0:  # the position of a client's own task
            self._client_task_count = max(self._client_task_count, -order)
            self._waiting_orders.add(order)
        elif order >= self._next:
            self._waiting_orders.update(range(self._next, order + 1))
            self._next = order + 1
        return order in self._waiting_orders

    def is_waiting(self, order: int) -> bool:
        """Return True if the position was leased before and is free again."""
        return order in self._waiting_orders

    def claim(self, order: int) -> Lease:
        """Lease the waiting position `order` under a new fence and return the lease."""
        return self._lease_position(order)

    def current_lease(self, order: int) -> Lease:
        """Return the present lease of a leased position."""
        return Lease(order, self._fence_by_order[order])

    def require_lease(self, lease: Lease) -> None:
        """Raise LeaseLostError if the lease is not the position's present one."""
        if self._fence_by_order.get(lease.order) != lease.fence:
            raise LeaseLostError(
                f"the lease of position {lease.order} is not valid any more (lease number {lease.fence})"
            )

    def end(self, orders: Iterable[int]) -> None:
        """End leased positions for good. Raises LeaseLostError, and ends none, if a position is not leased."""
        ending = set(orders)
        if unleased := ending - self._fence_by_order.keys():
            raise LeaseLostError(f"positions {sorted(unleased)} are not leased by this process")
        for order in ending:
            del self._fence_by_order[order]

    def give_back(self, lease: Lease) -> None:
        """End a lease and free the position, which is leased again before new ones.

        Raises LeaseLostError if it is stale.
        """
        self.require_lease(lease)
        del self._fence_by_order[lease.order]
        self._waiting_orders.add(lease.order)

    def begun(self) -> list[int]:
        """Return the positions of the training order that are leased or waiting."""
        return sorted(order for order in self._fence_by_order.keys() | self._waiting_orders if order >= 0)

    def state(self) -> dict[str, Any]:
        """Return the positions as JSON values for a checkpoint.

        A leased position counts as waiting, because its lease ends with the process.

        Returns:
            `next`: first position never leased; `unfinished`: leased and waiting positions; `brought`: number of
                clients' own tasks so far.
        """
        return {"next": self._next, "unfinished": self.begun(), "brought": self._client_task_count}

    def _lease_position(self, order: int) -> Lease:
        """Lease a position under a new, higher fence, so that every earlier lease of the position is stale."""
        self._waiting_orders.discard(order)
        self._fence += 1
        self._fence_by_order[order] = self._fence
        return Lease(order, self._fence)


Line = tuple[dict[str, Any], bytes]
"""Parsed row and original bytes of a line in a pending file: one episode."""


class RunStore:
    """The store of one process, in files of the run's folder."""

    def __init__(
        self,
        folder: Path | None,
        *,
        ledger: str = "",
        at: Mapping[str, Any] | None = None,
        redact: Redactor | None = None,
        usable: Callable[[Sequence[Kept]], bool] = bool,
    ) -> None:
        """Open the store.

        Args:
            folder: Folder for episodes that no checkpoint contains yet. None disables `put`.
            ledger: name of the store. Uses of a checkpoint with another name are ignored.
            at: The store's state in the checkpoint. None: no checkpoint.
            redact: Removes secrets from stored text.
            usable: returns True if a position's put episodes may be used at this checkpoint. Unusable episodes are
                removed, and the position is played again.
        """
        state = at or {}
        self._files = EpisodeFiles(folder, redact) if folder is not None else None
        self._ledger, self._is_trainable = ledger, usable
        self._lock = threading.Lock()
        self._positions = PositionQueue(state)
        self._closed: set[int] = set()
        self._put_episodes: dict[int, list[Kept]] = {}
        self._numbers: dict[int, int] = {}
        """File number of each open position with episodes."""
        # Uses recorded with another store say nothing about the episodes of this one.
        uses = state if state.get("ledger") == ledger else {}
        self._step_of_use: dict[str, int] = {name: int(step) for name, step in uses.get("used", ())}
        """Step of the last use of each used position, by the uuid of the position's first episode."""
        self._to_come: dict[str, list[int]] = {name: list(steps) for name, steps in uses.get("again", ())}
        """Steps that used each reusable position, by the uuid of the position's first episode, from the checkpoint."""
        self._steps: dict[int, list[int]] = {}
        """Steps that used each reusable position, by position."""
        self._used_file_numbers: dict[str, int] = {}
        """File number of each used position still on disk, by the uuid of the position's first episode."""
        self._last_file_number = -1
        """Highest file number so far."""
        if self._files is not None:
            self._read_pending(self._files)

    def lease(self, count: int) -> list[Lease]:
        """Lease the next `count` positions of the training order, and return each with its stored episodes."""
        with self._lock:
            return [self._attach_episodes(lease) for lease in self._positions.take(count)]

    def bring(self) -> Lease:
        """Lease a new position for a client's own task, outside the training order."""
        with self._lock:
            return self._positions.bring()

    def lease_kept(self) -> list[Lease]:
        """Lease the free positions that have stored episodes, whose groups an earlier lease left incomplete."""
        with self._lock:
            orders_with_episodes = sorted(order for order in self._put_episodes if self._positions.is_waiting(order))
            return [self._attach_episodes(self._positions.claim(order)) for order in orders_with_episodes]

    def put(self, lease: Lease, *kept: Kept) -> None:
        """Write the episodes of a leased position to its pending file. Episodes that are already stored are skipped.

        Raises:
            LeaseLostError: the lease is stale.
            RuntimeError: the store was opened without a folder.
        """
        if self._files is None:
            raise RuntimeError("the store has no folder")
        with self._lock:
            self._positions.require_lease(lease)
            stored = self._put_episodes.get(lease.order, [])
            new_attempts = [
                attempt
                for attempt in kept
                if all(attempt.episode.uuid != stored_attempt.episode.uuid for stored_attempt in stored)
            ]
            if not new_attempts:
                return
            file_number = self._numbers.get(lease.order, self._last_file_number + 1)
            notes_by_uuid = {
                attempt.episode.uuid: {"alone": attempt.alone, "ended_by": attempt.ended_by, "position": lease.order}
                for attempt in new_attempts
            }
            self._files.write(file_number, "train", [attempt.episode for attempt in new_attempts], notes=notes_by_uuid)
            self._numbers[lease.order], self._last_file_number = file_number, max(self._last_file_number, file_number)
            self._put_episodes[lease.order] = [*stored, *new_attempts]

    def close(self, lease: Lease) -> None:
        """Record that the group at the leased position is complete.

        An empty marker file records it for later processes.
        """
        with self._lock:
            self._positions.require_lease(lease)
            self._closed.add(lease.order)
            if lease.order in self._numbers:
                self._closed_marker(self._numbers[lease.order]).touch()

    def closed(self) -> list[Lease]:
        """Return the positions whose group is complete, with their episodes, in order.

        Positions that a training step used for the last time are left out.
        """
        with self._lock:
            return [self._attach_episodes(self._positions.current_lease(order)) for order in sorted(self._closed)]

    def begun(self) -> list[int]:
        """Return the positions of the training order that were leased and never used or discarded."""
        with self._lock:
            # `_steps` has the positions that a step used and that stay closed for reuse.
            return [order for order in self._positions.begun() if order not in self._steps]

    def use(self, orders: Iterable[int], step: int, *, again: Collection[int] = ()) -> None:
        """Record in memory that a training step used these positions. `commit` returns it for the checkpoint.

        Args:
            again: positions that stay closed, so that a later step may use them, too. The other positions are over.

        Raises:
            LeaseLostError: a position has no complete group, or this step or a later one has used it. No use is
                recorded.
        """
        using = set(orders)
        reusable = using & set(again)
        with self._lock:
            # Check everything first, so that an error changes nothing.
            used_already = [order for order in using if self._steps.get(order, [-1])[-1] >= step]
            if unusable := sorted({*used_already, *(reusable - (self._closed & self._put_episodes.keys()))}):
                raise LeaseLostError(
                    f"positions {unusable} have no complete group, or step {step} has used them already"
                )
            ended = using - reusable
            self._positions.end(ended)
            for order in reusable:
                self._steps.setdefault(order, []).append(step)
            for order in ended:
                self._closed.discard(order)
                self._steps.pop(order, None)
                if episodes := self._put_episodes.pop(order, None):
                    # The file stays until `forget`: a run resumed at an older checkpoint needs the episodes again. The
                    # first episode's uuid identifies the file across processes.
                    first_uuid = episodes[0].episode.uuid
                    self._step_of_use[first_uuid], self._used_file_numbers[first_uuid] = step, self._numbers.pop(order)

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """End the positions as `use` does. `reason` is not stored here, but in the record of the step."""
        self.use(orders, step)

    def give_back(self, leases: Iterable[Lease]) -> None:
        """Free leased positions. A client's own task without episodes is over: only the client could run it again.

        Raises:
            LeaseLostError: a lease is stale.
        """
        with self._lock:
            for lease in leases:
                self._positions.require_lease(lease)
                if lease.order < 0 and lease.order not in self._put_episodes:
                    self._positions.end([lease.order])
                else:
                    self._positions.give_back(lease)

    def commit(self) -> dict[str, Any]:
        """Return the positions and their uses as JSON values for the checkpoint.

        Returns:
            The values of `PositionQueue.state`; `ledger`: the store's name; `used`: [uuid of the position's first
                episode, step of its last use] pairs; `again`: [uuid, steps] pairs of positions that stay closed for
                reuse, if there are any.
        """
        with self._lock:
            used = [[first_uuid, step] for first_uuid, step in self._step_of_use.items()]
            reused = [
                [self._put_episodes[order][0].episode.uuid, [*steps]] for order, steps in sorted(self._steps.items())
            ]
            state = {**self._positions.state(), "ledger": self._ledger, "used": used}
            return {**state, "again": reused} if reused else state

    def forget(self, step: int) -> None:
        """Remove the files of positions used for the last time up to `step`, the oldest checkpoint still loadable."""
        with self._lock:
            for first_uuid in [first_uuid for first_uuid, used_at in self._step_of_use.items() if used_at <= step]:
                if self._files is not None and first_uuid in self._used_file_numbers:
                    self._remove_files(self._files, self._used_file_numbers.pop(first_uuid))
                del self._step_of_use[first_uuid]

    def _read_pending(self, files: EpisodeFiles) -> None:
        """Read the episode files of earlier processes, except those of positions that the checkpoint knows as used.

        Files whose episodes may not be used at this checkpoint are removed.

        Raises:
            UserError: an episode or its arrays were changed.
        """
        for file_number in files.steps():
            self._last_file_number = max(self._last_file_number, file_number)
            lines = list(read_lines(files.path(file_number)))
            rows = [row for row, _ in lines]
            first_uuid = str(rows[0].get("uuid")) if rows else ""
            if first_uuid in self._step_of_use:  # used for the last time, and kept until `forget`
                self._used_file_numbers[first_uuid] = file_number
                continue
            self._require_unchanged(files.path(file_number), lines)
            attempts = [
                Kept(episode, row["alone"], row["ended_by"])
                for row, episode in zip(rows, files.read(file_number), strict=True)
            ]
            # Episodes that a step has used already stay, so that later steps can use them again.
            if first_uuid in self._to_come or self._is_trainable(attempts):
                self._add_pending(file_number, rows[0]["position"], attempts, self._to_come.get(first_uuid))
            else:
                self._remove_files(files, file_number)

    @staticmethod
    def _require_unchanged(path: Path, lines: Sequence[Line]) -> None:
        """Raise UserError if a line of a pending file or its arrays were changed."""
        for line_number, error in _find_changed(path, lines):
            raise UserError(
                f"A recorded episode that is not trained yet was {error}.",
                where=f"{path}:{line_number}",
                expected="the unchanged line and arrays that the run wrote",
                do=f"restore {path.name} and its .bin file, or remove both: the task is then run again",
            )

    def _add_pending(self, file_number: int, order: int, attempts: list[Kept], used_steps: list[int] | None) -> None:
        """Restore a position from its pending file: closed if its group is complete, else free.

        If the position is over according to the checkpoint, its episodes get a new position outside the training order.

        Args:
            file_number: Number of the file.
            order: Position recorded in the file.
            attempts: The file's episodes.
            used_steps: Steps that used the position and left it closed for reuse. None: no step used it.
        """
        if not self._positions.offer(order):
            lease = self._positions.bring()
            self._positions.give_back(lease)
            order = lease.order
        self._put_episodes[order], self._numbers[order] = attempts, file_number
        if self._closed_marker(file_number).exists():
            self._positions.claim(order)
            self._closed.add(order)
            if used_steps:
                self._steps[order] = used_steps

    def _remove_files(self, files: EpisodeFiles, number: int) -> None:
        """Delete the pending file `number`, its arrays and its marker of a complete group, as far as they exist."""
        path = files.path(number)
        for file in (path, path.with_suffix(".bin"), self._closed_marker(number)):
            file.unlink(missing_ok=True)

    def _attach_episodes(self, lease: Lease) -> Lease:
        """Return a copy of the lease with the position's stored episodes and the steps that used the position."""
        steps = tuple(self._steps.get(lease.order, ()))
        return Lease(lease.order, lease.fence, tuple(self._put_episodes.get(lease.order, ())), steps)

    def _closed_marker(self, number: int) -> Path:
        """Return the path of the empty file that marks the group in the pending file `number` as complete."""
        assert self._files is not None
        return self._files.path(number).with_suffix(".closed")


def find_changed_episodes(folder: Path) -> Iterator[tuple[Path, int, AlteredEpisodeError]]:
    """Yield file, line number and error of each changed episode in a RunStore's folder. Raises UserError for damage."""
    files = EpisodeFiles(folder)
    for path in map(files.path, files.steps()):
        lines = list(read_lines(path))
        try:
            yield from ((path, line_number, error) for line_number, error in _find_changed(path, lines))
        except UserError:
            if path.exists():  # a live run may remove the file meanwhile, once no checkpoint needs the file
                raise


def _find_changed(path: Path, lines: Sequence[Line]) -> Iterator[tuple[int, AlteredEpisodeError]]:
    """Yield line number (from 1) and error of each line of a pending file that does not match its digest."""
    if not lines:
        return
    with open_arrays(path) as arrays:
        for line_number, (row, line) in enumerate(lines, 1):
            try:
                with explain_alteration(row.get("position"), str(row.get("uuid")), path.name):
                    if not matches_digest(row, line, arrays):
                        raise AlteredEpisodeError
            except AlteredEpisodeError as error:
                yield line_number, error
