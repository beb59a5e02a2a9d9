"""What a run that goes on has done and what it had under way, counted from the record and the ledger.

Invariant: consumed positions come from the rows of metrics, those under way from the store as it was opened at the
checkpoint: two files that two writers keep. Where they disagree, a position is counted as skipped or as doubled. One
that is given out no more, with a reason that the store keeps or a row of metrics says, is neither: it is given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Recovery:
    """The positions of the training order that were skipped, doubled, failed or forked, over all epochs."""

    consumed: int
    under_way: int
    skipped: int
    """Neither consumed nor under way, though later ones are."""
    doubled: int
    """Consumed more than once, or consumed and about to be played again."""
    given_up: int = 0
    """Not consumed, and given out no more: the store, or a row, says what went wrong."""

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Any]], begun: Iterable[int], *, step: int, dead: Iterable[int] = ()
    ) -> Recovery:
        """`rows`: of metrics.jsonl; `begun`: the positions that were and are not over; `step`: that of the
        checkpoint; `dead`: those that are given out no more."""
        taken: Counter[int] = Counter()
        lost = {*dead}
        for row in rows:
            if row.get("step", 0) <= step:
                taken.update({*row.get("tasks", ()), *row.get("discarded", ())})
                lost.update(int(order) for order in row.get("given_up", ()))
        waiting = {*begun}
        given_up = lost - taken.keys() - waiting
        known = taken.keys() | waiting | given_up
        whole = any(row.get("step") == 1 for row in rows)  # else it began from another run's checkpoint
        places = range(0 if whole else min(known, default=0), max(known, default=-1) + 1)
        return cls(
            consumed=sum(position >= 0 for position in taken),
            under_way=len(waiting),
            skipped=sum(position not in known for position in places),
            doubled=sum(count - 1 for count in taken.values()) + len(waiting & taken.keys()),
            given_up=len(given_up),
        )

    def __str__(self) -> str:
        """Part of the line that a resume prints."""
        given_up = f", given up {self.given_up} (`given_up` in metrics.jsonl says why)" if self.given_up else ""
        return (
            f"{self.consumed} tasks consumed, {self.under_way} under way come first; "
            f"skipped {self.skipped}, doubled {self.doubled}{given_up}"
        )
