"""Which criteria stay, and when looking for more ends.

Invariant: pure. A criterion is taken only where the labels agree better with it than without, and dropped where they
agree as well without it; so the agreement never falls. Choosing costs no question: each criterion's grades are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ajet_judges.rubrics.criterion import Criterion

AgreementFunction = Callable[[Sequence[Criterion]], float]
"""How well the labels agree with grades by these alone."""
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
    """`chosen`, and those of `fresh` that bring agreement, the best first, while each brings more."""
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
    """Without those without which the labels agree as well, the least useful first; one is left."""
    found = list(chosen)
    while len(found) > 1:
        value, place = max((agrees([*found[:place], *found[place + 1 :]]), place) for place in range(len(found)))
        if value < agrees(found) - LEAST:
            break
        del found[place]
    return found


@dataclass(slots=True)
class StopRules:
    """Decides when to stop: asked before each iteration and told after it."""

    patience: int
    min_increment: float
    max_iterations: int
    max_total: int
    best: float
    """At first the floor."""
    iterations: int = 0
    in_vain: int = 0
    """Iterations in a row that brought less than `min_increment`."""
    history: list[Mapping[str, float]] = field(default_factory=list)

    def reason(self, total: int, left: int) -> str:
        """Why it ends; "" where it goes on. `total`: criteria that are kept; `left`: examples not yet looked at."""
        if self.in_vain >= self.patience:
            return f"patience: {self.in_vain} iterations brought less than {self.min_increment:g}"
        if self.iterations >= self.max_iterations:
            return f"max_iterations: {self.iterations}"
        if total >= self.max_total:
            return f"max_total_rubrics: {total}"
        return "" if left else "all examples are looked at"

    def note_iteration(self, value: float, *, proposed: int, chosen: int) -> None:
        """Note the agreement that an iteration came to."""
        self.in_vain = self.in_vain + 1 if value - self.best < self.min_increment else 0
        self.best = max(self.best, value)
        self.iterations += 1
        self.history.append({"proposed": proposed, "kept": chosen, "agreement": value})
