"""The interface of a store, tested for every implementation by tests/contract/test_stores.py.

A position is a task's place in the training order. The parameter `order` is a position's number, `orders` are several.
To put an episode is to store it under a leased position. A use is a training step's update on the group at a position.
Invariant: a position is either free, leased, closed (its group is complete) or over (used for the last time, or
discarded). Uses count only as of a checkpoint: a store opened at a checkpoint undoes later uses and keeps the episodes
of these uses. A put episode is on disk exactly once. A stale lease is refused. No step uses a position twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.record.files import CannotWriteError
from ajet.schema.episode import Episode, UntrainedReason
from ajet.schema.errors import AjetError, RunFailed, ServiceUnreachableError, UserError


class StoreUnavailableError(UserError):
    """The store cannot answer or write at present, or refuses this process. The operation had no effect."""


class StoreDownError(RunFailed, StoreUnavailableError):
    """The store's server refuses this process, or its disk is full."""


class StoreUnreachableError(ServiceUnreachableError, StoreUnavailableError):
    """The store was unreachable for longer than the process waits."""


TRANSIENT_ERRORS = (StoreUnavailableError, CannotWriteError, OSError)
"""Errors of a store that may disappear on a retry; mistakes of the user or of ajet are not included."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished episode, with the facts that a store adds to the episode."""

    episode: Episode
    alone: bool = False
    """True if the episode belongs to no group and is recorded only."""
    ended_by: str = ""
    """Name of the sampler, or on a server the cause of the end (such as "client"); "" if unknown."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A leased position. `order` is the number of the position: from 0, or negative for a client's own task."""

    order: int
    fence: int
    """Number of the lease; only the latest lease of a position is valid."""
    attempts: tuple[Kept, ...] = field(default=(), compare=False)  # episodes already put
    used: tuple[int, ...] = field(default=(), compare=False)
    """Steps that have used the group, in order, if the position stays closed for reuse."""


class LeaseLostError(AjetError):
    """Another process has leased the position by now, or the position is over."""


class Store(Protocol):
    """The registry of positions: leases them, stores their episodes, and records their use by training steps."""

    def lease(self, count: int) -> list[Lease]:
        """Lease the next `count` positions of the training order: free ones that were leased before, then new ones."""
        ...

    def bring(self) -> Lease:
        """Lease a new position for a client's own task, outside the training order.

        If it is returned or its lease is lost, such a position is leased again only if it has stored episodes.
        """
        ...

    def lease_kept(self) -> list[Lease]:
        """Lease all free positions that have stored episodes, but no complete group; clients' own tasks included."""
        ...

    def put(self, lease: Lease, *kept: Kept) -> None:
        """Store episodes under a leased position, all or none. They are on disk on return.

        A repeated put has no effect.

        Raises:
            LeaseLostError: the lease is stale.
            TRANSIENT_ERRORS: no episode was stored, and the put may be repeated.
        """
        ...

    def close(self, lease: Lease) -> None:
        """Close a leased position, because its group of episodes is complete.

        Raises:
            LeaseLostError: the lease is stale.
        """
        ...

    def closed(self) -> list[Lease]:
        """Return the leases of closed positions (complete groups) with their episodes, by position.

        Positions that a training step used for the last time are left out.
        """
        ...

    def begun(self) -> list[int]:
        """Return the positions of the training order that were leased, but never used or discarded."""
        ...

    def use(self, orders: Iterable[int], step: int, *, again: Collection[int] = ()) -> None:
        """Record that the update of a step used these leased or closed positions.

        Args:
            orders: Numbers of the positions.
            step: Number of the training step.
            again: closed positions with episodes that stay closed, so that a later step may use them, too.

        Raises:
            LeaseLostError: a position is in another state, or this step or a later one has used a position. Then none
                is used.
        """
        ...

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """End positions without an update, or after their last use. Raises LeaseLostError as `use` does.

        Args:
            orders: Numbers of the positions.
            step: Training step that records the discard.
            reason: why no update, or no further update, trains on the groups.
        """
        ...

    def give_back(self, leases: Iterable[Lease]) -> None:
        """End leases of incomplete groups, so that the positions are free again. Stored episodes stay.

        Raises:
            LeaseLostError: a lease is stale.
        """
        ...

    def commit(self) -> dict[str, Any]:
        """Return the store's state for the next checkpoint as JSON values, with all uses so far.

        A resumed run opens the store with this state as the argument `at`, which undoes later uses.
        """
        ...

    def forget(self, step: int) -> None:
        """Drop the data of groups used up to `step`, the oldest checkpoint that a run may still load."""
        ...
