"""Positions that a store gives out no more (dead letters): which they are, and of which nobody has said so yet.

Invariant: a position that is given up is said once by each process that trains, with what went wrong, and is counted as
given up wherever positions are counted: it is neither trained nor skipped. A store that knows of no such positions, as
that of one process, which does not begin with what was changed, has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from loguru import logger

from ajet.store.contract import Store
from ajet.store.digest import ALTERED
from ajet.store.group_check import UNREADABLE, kind_of
from ajet.store.shared import DeadLetter

LONGEST_REASON = 300
"""Characters of why an attempt failed."""


class TaskNamer(Protocol):
    """An order of tasks."""

    def task(self, order: int) -> Any: ...


def list_dead_letters(store: Store) -> list[DeadLetter]:
    """The store's dead letters, in order; empty for a store that has none."""
    read = getattr(store, "dead", None)
    return list(read()) if read is not None else []


class DeadLetterLog:
    """The positions of one store that were given up; not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logged: set[int] = set()
        """Positions of which that was said, and that are so still."""
        self._kinds: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """The number of positions given up, as of the last `log_new`."""
        return len(self._logged)

    @property
    def quarantined(self) -> Counter[str]:
        """The number of groups that could not be trained on, by kind, as of the last look."""
        return Counter(self._kinds)

    def read_dead_letters(self) -> dict[int, tuple[str, ...]]:
        """Read the dead letters. Answers the reasons of each, by position."""
        dead = {each.order: each.reasons for each in list_dead_letters(self._store)}
        self._kinds = Counter(kind for reasons in dead.values() if (kind := _kind_of_letter(reasons)))
        return dead

    def log_new(self, tasks: TaskNamer | None) -> dict[int, list[str]]:
        """The positions of which it was not said yet, with what went wrong each time. `tasks`: whose names are said,
        too."""
        dead = self.read_dead_letters()
        new = {order: [why[:LONGEST_REASON] for why in dead[order]] for order in sorted(dead.keys() - self._logged)}
        for order, why in new.items():
            if kind_of(why[-1]):  # was logged when the group was refused
                continue
            name = f"task {tasks.task(order).task_id} (position {order})" if tasks and order >= 0 else f"task {order}"
            times = f" after {len(why)} attempt{'' if len(why) == 1 else 's'}"
            logger.warning("{} is given up{}: {}", name, "" if why[-1].startswith(ALTERED) else times, why[-1])
        self._logged = set(dead)
        return new


def _kind_of_letter(reasons: Sequence[str]) -> str:
    """The kind of refusal by which a position was given up; "" if its attempts failed."""
    last = reasons[-1] if reasons else ""
    return UNREADABLE if last.startswith(ALTERED) else kind_of(last)
