"""What a store promises; tests/contract/test_stores.py holds every implementation to it.

Invariant: a position is to be had, leased, closed, or over (used for the last time, or discarded), one of these at a
time, and used only as of a checkpoint: the store that is opened at one takes back every use after it, with the episodes
that were put. An end that was put is on the disk, once. Who comes with a lease that another has since is refused. No
step uses a position twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.record.write_errors import CannotWriteError
from ajet.schema.episode import Episode, UntrainedReason
from ajet.schema.errors import AjetError, RunFailed, ServiceUnreachableError, UserError


class StoreUnavailableError(UserError):
    """The store cannot be asked, or cannot write, for now or not by this process: nothing of what was asked is done."""


class StoreDownError(RunFailed, StoreUnavailableError):
    """The store's server refuses this process, or has no room."""


class StoreUnreachableError(ServiceUnreachableError, StoreUnavailableError):
    """The store was out of reach for as long as this process waits for it."""


TRANSIENT_ERRORS = (StoreUnavailableError, CannotWriteError, OSError)
"""What a store raises that may do the same later. A mistake of the person's or of ours is none of these."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An episode that has ended, with what its end was about."""

    episode: Episode
    alone: bool = False
    """Part of no group: recorded only."""
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """A position that somebody plays. `order`: in the training order; negative: of a task that somebody brought."""

    order: int
    fence: int
    """Which lease of the position it is: the latest counts."""
    kept: tuple[Kept, ...] = field(default=(), compare=False)
    """What was put of it already."""
    used: tuple[int, ...] = field(default=(), compare=False)
    """The steps that have used it, the first one first, where it stays closed to be used again."""


class LeaseLostError(AjetError):
    """The position is another's by now, or over."""


class Store(Protocol):
    """Thread-safe."""

    def lease(self, count: int) -> list[Lease]:
        """The next positions: first those that were begun and are nobody's, in order."""
        ...

    def bring(self) -> Lease:
        """A position for a task that is in no order. It is never leased again, but with what was put of it."""
        ...

    def lease_kept(self) -> list[Lease]:
        """Lease all positions that nobody holds, that are not closed, and of which something was put."""
        ...

    def put(self, lease: Lease, *kept: Kept) -> None:
        """Keep ends, all of them or none. On return they are on the disk; again is no second time. Raises
        LeaseLostError; one of TRANSIENT_ERRORS, and then none is kept and they may be put again."""
        ...

    def close(self, lease: Lease) -> None:
        """Mark the leased position's group as whole. Raises LeaseLostError."""
        ...

    def closed(self) -> list[Lease]:
        """The positions that are closed and not over, in order."""
        ...

    def begun(self) -> list[int]:
        """Positions of the order that were leased once, and that no step has used or discarded."""
        ...

    def use(self, orders: Iterable[int], step: int, *, again: Collection[int] = ()) -> None:
        """The update of this step is over these, which are leased or closed. Those of them in `again`, which are closed
        and of which something was put, stay so, for a later step. Raises LeaseLostError for any other, and for one that
        this step or a later one has used; then none is used."""
        ...

    def discard(self, orders: Iterable[int], step: int, reason: UntrainedReason) -> None:
        """End positions that no update is over, or that were used and are to be used no more. Raises as `use`."""
        ...

    def give_back(self, leases: Iterable[Lease]) -> None:
        """Give leases back that were not finished; what was put of them is kept. Raises LeaseLostError."""
        ...

    def commit(self) -> dict[str, Any]:
        """What the next checkpoint is to hold, as JSON values: all uses so far. The store is opened `at` it."""
        ...

    def forget(self, step: int) -> None:
        """No checkpoint before that of this step is gone back to: what was used up to it need not be kept."""
        ...
