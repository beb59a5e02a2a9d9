"""Positions that a store gives out no more (dead letters): which they are, and of which nobody has said so yet.

Invariant: a position that is given up is said once by each process that trains, with what went wrong, and is counted as
given up wherever positions are counted: it is neither trained nor skipped. A store that knows of no such positions, as
that of one process, which does not begin with what was changed, has none.
"""

from __future__ import annotations

from typing import Any, Protocol

from loguru import logger

from ajet.store.contract import Store
from ajet.store.seal import ALTERED
from ajet.store.shared import Dead

LONGEST_REASON = 300
"""Characters of why an attempt failed."""


class NamesTasks(Protocol):
    """An order of tasks."""

    def task(self, order: int) -> Any: ...


def dead_of(store: Store) -> list[Dead]:
    """The store's dead letters, in order; empty for a store that has none."""
    asked = getattr(store, "dead", None)
    return list(asked()) if asked is not None else []


class GivenUp:
    """The positions of one store that were given up; not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._said: set[int] = set()
        """Positions of which that was said, and that are so still."""

    @property
    def count(self) -> int:
        """The number of positions given up, as of the last `newly`."""
        return len(self._said)

    def newly(self, tasks: NamesTasks | None) -> dict[int, list[str]]:
        """The positions of which it was not said yet, with what went wrong each time. `tasks`: whose names are said,
        too."""
        dead = {each.order: each.reasons for each in dead_of(self._store)}
        new = {order: [why[:LONGEST_REASON] for why in dead[order]] for order in sorted(dead.keys() - self._said)}
        for order, why in new.items():
            name = f"task {tasks.task(order).task_id} (position {order})" if tasks and order >= 0 else f"task {order}"
            times = f" after {len(why)} attempt{'' if len(why) == 1 else 's'}"
            logger.warning("{} is given up{}: {}", name, "" if why[-1].startswith(ALTERED) else times, why[-1])
        self._said = set(dead)
        return new
