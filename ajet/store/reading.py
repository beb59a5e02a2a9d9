"""What a store holds, for who has its address and no more: positions with their episodes, and what its trainer said.

Invariant: nothing is changed: no database is made or brought up, no lease ends, no position is set aside. Each position
is read as it is at one moment; an episode is as it was put, or it is said how it was changed.
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
    """A position of which something was put."""

    order: int
    state: State
    kept: tuple[Kept, ...] = ()
    """Those that are as they were put."""
    altered: tuple[str, ...] = ()
    """How each of the others was changed."""
    used: tuple[int, ...] = ()
    """The steps whose updates were over it, the first one first."""
    left: str = ""
    """Why no step trained on it, where it was left out."""


class StoreReader(Protocol):
    """Reads one store without changing it; every method raises UserError where it cannot be read."""

    run: str
    """The identity of the run whose ledger it is; "": nobody trained yet."""
    settings: str
    """Its resolved YAML; "": no trainer has opened the store."""

    def announced(self) -> Policy | None:
        """The latest policy."""
        ...

    def begun(self) -> int:
        """The number of positions of the order that somebody had once."""
        ...

    def orders(self, beginning: str = "", steps: Collection[int] = ()) -> list[int]:
        """Positions of which something was put, in order; those alone that hold an episode whose uuid begins so, and
        that one of these steps used."""
        ...

    def position(self, order: int) -> StoredPosition | None:
        """A position with its episodes; None: it was let go of meanwhile."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


def build_stored_position(
    order: int, state: State, ends: list[Kept | AlteredEpisodeError], steps: Collection[int], left: str
) -> StoredPosition:
    """A position, of what was read of it."""
    unaltered = tuple(each for each in ends if isinstance(each, Kept))
    altered = tuple(str(each) for each in ends if isinstance(each, AlteredEpisodeError))
    return StoredPosition(order, state, unaltered, altered, tuple(steps), "" if steps else left)
