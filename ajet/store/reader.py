"""Reads a store by address alone: positions with episodes, and the announced policy.

A position is a task's place in the training order. Invariant: a reader changes nothing: no database is created or
migrated, no lease ends, no position is quarantined. Each position is read at one moment; a changed episode is reported
with the change.
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
    """A position of the training order with its stored episodes."""

    order: int
    state: State
    attempts: tuple[Kept, ...] = ()  # unchanged episodes
    altered: tuple[str, ...] = ()
    """For each changed episode, a description of the change."""
    used: tuple[int, ...] = ()
    """Training steps that used the position, in order."""
    left: str = ""
    """Why the position was discarded without an update; "" for other positions."""


class StoreReader(Protocol):
    """Reads one store without changing it. Every method raises UserError for an unreadable store."""

    run: str
    """Identity of the run; "" before the first training."""
    settings: str
    """Resolved YAML of the run; "" before a trainer opened the store."""

    def announced(self) -> Policy | None:
        """Return the latest policy announced for samplers, or None without one."""
        ...

    def begun(self) -> int:
        """Return the number of positions of the training order that were leased at least once."""
        ...

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        """Return the numbers of positions with episodes, in order.

        Args:
            beginning: Only positions with an episode whose uuid begins so.
            steps: Only positions used by these training steps. Empty: all.
        """
        ...

    def position(self, order: int) -> StoredPosition | None:
        """Return a position with its episodes, or None if a writer has removed the position meanwhile."""
        ...

    def close(self) -> None:
        """Close the connection to the store's database."""
        ...


def build_stored_position(
    order: int, state: State, ends: list[Kept | AlteredEpisodeError], steps: Collection[int], discard_reason: str
) -> StoredPosition:
    """Build a position from values read from a database.

    Args:
        ends: the stored episodes, or the errors for changed ones.
        steps: the training steps that used the position.
        discard_reason: why the position was discarded. Ignored if a step used the position.
    """
    unaltered = tuple(end for end in ends if isinstance(end, Kept))
    altered = tuple(str(end) for end in ends if isinstance(end, AlteredEpisodeError))
    return StoredPosition(order, state, unaltered, altered, tuple(steps), "" if steps else discard_reason)
