"""Dead letters: positions that a store leases no more, and their log lines.

A position is a task's place in the training order. It becomes a dead letter after too many failed attempts, or if its
group cannot be trained on. Invariant: each training process logs a dead letter once with the reasons, and every count
of positions includes dead letters, neither as trained nor as skipped. A store of one process refuses to open with
changed episodes and has no dead letters.
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
"""Characters of a failed attempt's reason in the log."""


class TaskNamer(Protocol):
    """Maps a position to its task, as `TaskOrder` does."""

    def task(self, order: int) -> Any:
        """Return the task at position `order`; its `task_id` names it in log lines."""
        ...


def list_dead_letters(store: Store) -> list[DeadLetter]:
    """Return the positions that the store leases no more, in order, or [] for a store of one process."""
    read_dead_letters = getattr(store, "dead", None)
    return list(read_dead_letters()) if read_dead_letters is not None else []


class DeadLetterLog:
    """Logs the dead letters of one store. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logged_positions: set[int] = set()
        """Logged positions that are still dead."""
        self._kinds: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """The number of dead letters (positions leased no more), as of the last `log_new`."""
        return len(self._logged_positions)

    @property
    def quarantined(self) -> Counter[str]:
        """The number of groups that could not be trained on, by the kind of refusal (`RefusalKind`), as last read."""
        return Counter(self._kinds)

    def read_dead_letters(self) -> dict[int, tuple[str, ...]]:
        """Return the reasons of each dead letter in the store, by position."""
        dead = {letter.order: letter.reasons for letter in list_dead_letters(self._store)}
        self._kinds = Counter(kind for reasons in dead.values() if (kind := _kind_of_letter(reasons)))
        return dead

    def log_new(self, tasks: TaskNamer | None) -> dict[int, list[str]]:
        """Log the dead letters that are new since the last call, and return their reasons by position.

        Args:
            tasks: gives the task's name for the log; None to log the position alone.
        """
        dead = self.read_dead_letters()
        new = {
            order: [reasons[:LONGEST_REASON] for reasons in dead[order]]
            for order in sorted(dead.keys() - self._logged_positions)
        }
        for order, reasons in new.items():
            if kind_of(reasons[-1]):  # logged when the group was refused
                continue
            position_name = (
                f"task {tasks.task(order).task_id!r} (position {order} of the training order)"
                if tasks and order >= 0  # a client's own task has a negative position and is unknown to `tasks`
                else f"task {order}"
            )
            attempts_text = f" after {len(reasons)} attempt{'' if len(reasons) == 1 else 's'}"
            # A position with a changed episode is given up because of the change, not because of failed attempts.
            logger.warning(
                "{} is given up{}: {}",
                position_name,
                "" if reasons[-1].startswith(ALTERED) else attempts_text,
                reasons[-1],
            )
        self._logged_positions = set(dead)
        return new


def _kind_of_letter(reasons: Sequence[str]) -> str:
    """Return the kind of refusal (`RefusalKind`) of a dead letter's group, or "" if its attempts failed instead."""
    last = reasons[-1] if reasons else ""
    return UNREADABLE if last.startswith(ALTERED) else kind_of(last)
