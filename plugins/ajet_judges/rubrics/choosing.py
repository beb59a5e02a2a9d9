"""Select criteria by agreement with labels, and decide when to stop.

Invariant: pure functions. A criterion is added only if it improves the agreement, and dropped if agreement stays equal
without it; so agreement never falls. Selection needs no request: all grades are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ajet_judges.rubrics.criterion import Criterion

AgreementFunction = Callable[[Sequence[Criterion]], float]
"""Agreement of labels with grades by these criteria alone."""
LEAST = 1e-9


def extend_criteria(
    chosen: Sequence[Criterion],
    fresh: Sequence[Criterion],
    agrees: AgreementFunction,
    *,
    floor: float,
    most_new: int,
    most: int,
) -> list[Criterion]:
    """Return `chosen` plus criteria of `fresh` that improve agreement, best first."""
    found, rest = list(chosen), list(fresh)
    best = agrees(found) if found else floor
    for _ in range(most_new):
        if len(found) >= most or not rest:
            break
        value, place = max((agrees([*found, each]), -place) for place, each in enumerate(rest))
        if value <= best + LEAST:
            break
        best = value
        found.append(rest.pop(-place))
    return found


def drop_idle_criteria(chosen: Sequence[Criterion], agrees: AgreementFunction) -> list[Criterion]:
    """Drop criteria without influence on agreement, least useful first; at least one stays."""
    found = list(chosen)
    while len(found) > 1:
        value, place = max((agrees([*found[:place], *found[place + 1 :]]), place) for place in range(len(found)))
        if value < agrees(found) - LEAST:
            break
        del found[place]
    return found


@dataclass(slots=True)
class StopRules:
    """Decides when to stop: call `reason` before each iteration, `note_iteration` after it."""

    patience: int
    min_increment: float
    max_iterations: int
    max_total: int
    best: float  # initially the floor
    iterations: int = 0
    in_vain: int = 0
    """Consecutive iterations with less improvement than `min_increment`."""
    history: list[Mapping[str, float]] = field(default_factory=list)

    def reason(self, total: int, left: int) -> str:
        """Return why to stop; "" to continue. `total`: number of chosen criteria; `left`: unused examples."""
        if self.in_vain >= self.patience:
            return f"the last {self.in_vain} iterations gained less than {self.min_increment:g}"
        if self.iterations >= self.max_iterations:
            return f"max_iterations: {self.iterations}"
        if total >= self.max_total:
            return f"max_total_rubrics: {total}"
        return "" if left else "all examples are used"

    def note_iteration(self, value: float, *, proposed: int, chosen: int) -> None:
        """Record the agreement after an iteration."""
        self.in_vain = self.in_vain + 1 if value - self.best < self.min_increment else 0
        self.best = max(self.best, value)
        self.iterations += 1
        self.history.append({"proposed": proposed, "kept": chosen, "agreement": value})
