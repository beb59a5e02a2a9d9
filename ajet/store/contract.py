"""The interface of a store, tested for every implementation by tests/contract/test_stores.py.

Invariant: a position is either free, leased, closed or over (used for the last time, or discarded). Uses count only as
of a checkpoint: a store opened at a checkpoint undoes later uses and keeps their episodes. A put episode is on disk
exactly once. A stale lease is refused. No step uses a position twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.record.write_errors import CannotWriteError
from ajet.schema.episode import Episode, UntrainedReason
from ajet.schema.errors import AjetError, RunFailed, ServiceUnreachableError, UserError


class StoreUnavailableError(UserError):
    """The store cannot answer or write at present, or refuses this process; the operation had no effect."""


class StoreDownError(RunFailed, StoreUnavailableError):
    """The store's server refuses this process, or has no room."""


class StoreUnreachableError(ServiceUnreachableError, StoreUnavailableError):
    """The store was unreachable for longer than the process waits."""


TRANSIENT_ERRORS = (StoreUnavailableError, CannotWriteError, OSError)
"""Errors of a store that may disappear on a retry; mistakes of the user or of ajet are not included."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished episode with facts about its end."""

    episode: Episode
    alone: bool = False
    """True if the episode belongs to no group and is recorded only."""
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """A leased position. `order` is the place in the training order; negative for a client's own task."""

    order: int
    fence: int
    """Number of the lease; only the latest lease of a position is valid."""
    attempts: tuple[Kept, ...] = field(default=(), compare=False)  # episodes already put
    used: tuple[int, ...] = field(default=(), compare=False)
    """Steps that have used the group, in order, if the position stays closed for reuse."""


class LeaseLostError(AjetError):
    """The position is leased by another process by now, or over."""


class Store(Protocol):
    def lease(self, count: int) -> list[Lease]:
        """Lease the next positions: started and free positions first, in order."""
        ...

    def bring(self) -> Lease:
        """Lease a position for a task outside the order; leased again only if episodes were put."""
        ...

    def lease_kept(self) -> list[Lease]:
        """Lease all free, open positions with put episodes."""
        ...

    def put(self, lease: Lease, *kept: Kept) -> None:
        """Put episodes, all or none; a repeated put has no effect. They are on disk on return.

        Raises:
            LeaseLostError: the lease is stale.
            TRANSIENT_ERRORS: no episode was stored; the put may be repeated.
        """
        ...

    def close(self, lease: Lease) -> None:
        """Close the leased position: the group is complete. Raises LeaseLostError."""
        ...

    def closed(self) -> list[Lease]:
        """Return the positions that are closed and not over, in order."""
        ...

    def begun(self) -> list[int]:
        """Return the positions of the order that were leased and never used or discarded."""
        ...

    def use(self, orders: Iterable[int], step: int, *, again: Collection[int] = ()) -> None:
        """Record the use of leased or closed positions by the update of this step.

        Args:
            again: closed positions with episodes that stay closed for a later step.

        Raises:
            LeaseLostError: a position is in another state, or this step or a later one has used a position; then none
                is used.
        """
        ...

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """End positions without an update, or after their last use. Raises as `use`."""
        ...

    def give_back(self, leases: Iterable[Lease]) -> None:
        """Return unfinished leases; put episodes stay stored. Raises LeaseLostError."""
        ...

    def commit(self) -> dict[str, Any]:
        """Return the state for the next checkpoint as JSON values, with all uses so far.

        A store is opened `at` this state.
        """
        ...

    def forget(self, step: int) -> None:
        """Drop data used up to the oldest checkpoint `step`; no older checkpoint will be loaded."""
        ...
