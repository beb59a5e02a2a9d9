"""Validations held to their episodes: the numbers of a validation are computed again from what was played for it.

Invariant: the numbers of a row are those of one validation: the run's own attempts where it played some, else the
attempts of clients, in the order recorded, as many as the row counts. Attempts of clients that ended after their
validation was over are recorded behind it and are in no row. Rows of held-out lessons (`ajet sft`) have no episodes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import Group

if TYPE_CHECKING:
    from ajet.schema.episode import Episode

PREFIX = "validation/"
LESSONS = "validation/rows"
"""In a row of held-out lessons."""
NAMED_BY_RUN = "5"
"""The kind of uuid that ajet gives what it plays; what clients play has random ones."""
CLOSE = 1e-6
UNFINISHED = "the validation is not over, or was cut off"


class ValidationChecker:
    """Holds the validations of one training run, file by file."""

    def __init__(
        self, rows: Iterable[Mapping[str, Any]], *, finished: bool, in_order: bool, same_settings: bool
    ) -> None:
        """`finished`: the run came to its end; `in_order`: a step's validation is recorded before the next step;
        `same_settings`: all starts of the run had the same."""
        self._rows: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        self._last = -1
        for row in rows:
            self._last = max(self._last, row["step"])
            if any(name.startswith(PREFIX) for name in row) and LESSONS not in row:
                self._rows[row["step"]].append(row)
        self._finished, self._in_order, self._same_settings = finished, in_order, same_settings
        self.held = 0
        """Validations whose numbers were computed again."""
        self.unheld: Counter[str] = Counter()
        """Those whose numbers were not, by reason."""

    def check_file(self, step: int, episodes: Sequence[Episode]) -> Iterator[str]:
        """What of the numbers of a validation does not follow from its file, in words."""
        rows = self._rows.get(step, [])
        own = [episode for episode in episodes if episode.uuid[12:13] == NAMED_BY_RUN]
        if not rows:
            if own and self._same_settings and (self._finished or (self._in_order and step < self._last)):
                yield "its row in metrics.jsonl is missing"
            elif own:
                self.unheld[UNFINISHED] += 1
            return
        if len(rows) > 1 and self._same_settings and len(own) == len(episodes):
            yield f"it has {len(rows)} rows in metrics.jsonl"
        self.held += 1
        yield from _compare_numbers(
            rows[-1], _build_own_groups(own) if own else _build_client_groups(episodes, rows[-1])
        )

    def find_missing(self, steps: Collection[int], removed: Collection[str]) -> Iterator[tuple[int, str]]:
        """The validations whose episodes are not there. `steps`: those that have a file; `removed`: files that are
        known as removed."""
        for step in sorted(self._rows.keys() - {*steps}):
            if not {f"episodes/step-{step}.validation.{kind}" for kind in ("jsonl", "bin")} & {*removed}:
                yield step, "its episodes are missing"


def _build_own_groups(episodes: Sequence[Episode]) -> list[Group]:
    groups: dict[int, Group] = {}
    for episode in episodes:
        groups.setdefault(episode.order, Group(episode.task, episode.order, [])).episodes.append(episode)
    return [groups[order] for order in sorted(groups)]


def _build_client_groups(episodes: Sequence[Episode], row: Mapping[str, Any]) -> list[Group]:
    from ajet.train.sink import group_by_task

    count = row.get("validation/episodes")
    return group_by_task(episodes[:count] if isinstance(count, int) else episodes)


def _compare_numbers(row: Mapping[str, Any], groups: Sequence[Group]) -> Iterator[str]:
    from ajet.train.accounting import validation_metrics

    recomputed = validation_metrics(groups)
    recorded = {name: value for name, value in row.items() if name.startswith(PREFIX)}
    for name in sorted(recomputed.keys() | recorded.keys()):
        there, value = recorded.get(name), recomputed.get(name)
        if not _is_close(there, value):
            shown = "not computed" if value is None else f"{value:g}"
            yield f"{name} is {there} in metrics.jsonl, {shown} by the episodes"


def _is_close(there: Any, value: float | None) -> bool:
    if value is None or not math.isfinite(value):
        return there is None
    return isinstance(there, int | float) and math.isclose(there, value, rel_tol=CLOSE, abs_tol=CLOSE)
