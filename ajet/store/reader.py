"""Reads a store by address alone: positions with episodes, and the announced policy.

Invariant: nothing changes: no database is created or migrated, no lease ends, no position is quarantined. Each position
is read at one moment; a changed episode is reported with the change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from ajet.store.contract import Kept
from ajet.store.digest import AlteredEpisodeError
from ajet.store.shared import Policy

State = Literal["waiting", "leased", "closed", "over", "dead"]


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """A position with put episodes."""

    order: int
    state: State
    attempts: tuple[Kept, ...] = ()  # unchanged episodes
    altered: tuple[str, ...] = ()
    """For each changed episode, a description of the change."""
    used: tuple[int, ...] = ()
    """Steps that used the position, in order."""
    left: str = ""
    """Reason of a discarded position."""


class StoreReader(Protocol):
    """Reads one store without changing it. Every method raises UserError for an unreadable store."""

    run: str
    """Identity of the run; "" before the first training."""
    settings: str
    """Resolved YAML of the run; "" before a trainer opened the store."""

    def announced(self) -> Policy | None: ...

    def begun(self) -> int:
        """Return the number of started positions of the order."""
        ...

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        """Return positions with episodes, in order.

        Args:
            beginning: prefix of an episode's uuid.
            steps: only positions used by these steps.
        """
        ...

    def position(self, order: int) -> StoredPosition | None:
        """Return a position with its episodes; None if removed meanwhile."""
        ...

    def close(self) -> None: ...


def build_stored_position(
    order: int, state: State, ends: list[Kept | AlteredEpisodeError], steps: Collection[int], left: str
) -> StoredPosition:
    """Build a position from read rows."""
    unaltered = tuple(each for each in ends if isinstance(each, Kept))
    altered = tuple(str(each) for each in ends if isinstance(each, AlteredEpisodeError))
    return StoredPosition(order, state, unaltered, altered, tuple(steps), "" if steps else left)
