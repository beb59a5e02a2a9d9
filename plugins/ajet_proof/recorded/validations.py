"""Recomputes the numbers of validations from their episodes.

Invariant: a row holds the numbers of one validation: the run's own attempts if any, otherwise the first client attempts
in recorded order, as many as the row counts. Later client attempts are recorded after the validation and belong to no
row. Rows of `ajet sft` held-out data have no episodes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import Group
from ajet.train.accounting import group_by_order, validation_metrics

if TYPE_CHECKING:
    from ajet.schema.episode import Episode

PREFIX = "validation/"
LESSONS = "validation/rows"
"""Metric by which a row about held-out supervised data is recognized."""
NAMED_BY_RUN = "5"
"""UUID version digit of the run's own episodes; client episodes have random uuids."""
CLOSE = 1e-6
UNFINISHED = "the validation is unfinished"


class ValidationChecker:
    """Checks the validations of one training run, file by file."""

    def __init__(
        self, rows: Iterable[Mapping[str, Any]], *, finished: bool, in_order: bool, same_settings: bool
    ) -> None:
        """Collect the rows of validations.

        Args:
            rows: All rows of metrics.jsonl.
            finished: True if the run has ended normally.
            in_order: True if a step's validation is always recorded before the next step.
            same_settings: True if all launches of the run had the same settings.
        """
        self._rows_of_step: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        self._last_step = -1
        for row in rows:
            self._last_step = max(self._last_step, row["step"])
            if any(name.startswith(PREFIX) for name in row) and LESSONS not in row:
                self._rows_of_step[row["step"]].append(row)
        self._finished = finished
        self._in_order = in_order
        self._same_settings = same_settings
        self.held = 0
        """Number of validations with recomputed numbers."""
        self.unheld: Counter[str] = Counter()
        """Number of validations without recomputed numbers, by reason."""

    def check_file(self, step: int, episodes: Sequence[Episode]) -> Iterator[str]:
        """Yield a message for each number of a validation that does not follow from its episodes.

        Args:
            step: The step after which the validation ran.
            episodes: The episodes in its file.
        """
        rows = self._rows_of_step.get(step, [])
        named_by_run = [episode for episode in episodes if episode.uuid[12:13] == NAMED_BY_RUN]
        if not rows:
            if named_by_run and self._same_settings and (self._finished or (self._in_order and step < self._last_step)):
                yield "its row in metrics.jsonl is missing"
            elif named_by_run:
                self.unheld[UNFINISHED] += 1
            return
        if len(rows) > 1 and self._same_settings and len(named_by_run) == len(episodes):
            yield f"it has {len(rows)} rows in metrics.jsonl"
        self.held += 1
        yield from _compare_numbers(
            rows[-1], group_by_order(named_by_run) if named_by_run else _build_client_groups(episodes, rows[-1])
        )

    def find_missing(self, steps: Collection[int], removed: Collection[str]) -> Iterator[tuple[int, str]]:
        """Yield (step, message) for each validation whose episode file is missing.

        Args:
            steps: Steps that have a validation file.
            removed: Files that were removed on purpose, according to the chain.
        """
        for step in sorted(self._rows_of_step.keys() - {*steps}):
            if not {f"episodes/step-{step}.validation.{kind}" for kind in ("jsonl", "bin")} & {*removed}:
                yield step, "its episodes are missing"


def _build_client_groups(episodes: Sequence[Episode], row: Mapping[str, Any]) -> list[Group]:
    """Group the first client episodes of a validation by task, as many as its row counts.

    Later client episodes were recorded after the validation and do not belong to the row.
    """
    from ajet.train.sink import group_by_task

    count = row.get("validation/episodes")
    return group_by_task(episodes[:count] if isinstance(count, int) else episodes)


def _compare_numbers(row: Mapping[str, Any], groups: Sequence[Group]) -> Iterator[str]:
    """Yield a message for each number in a validation's row that differs from the one recomputed from its groups."""
    recomputed = validation_metrics(groups)
    recorded = {name: value for name, value in row.items() if name.startswith(PREFIX)}
    for name in sorted(recomputed.keys() | recorded.keys()):
        recorded_value, value = recorded.get(name), recomputed.get(name)
        if not _is_close(recorded_value, value):
            computed = "not computed" if value is None else f"{value:g}"
            yield f"{name} is {recorded_value} in metrics.jsonl, {computed} by the episodes"


def _is_close(recorded: Any, value: float | None) -> bool:
    """True if a recorded value equals the recomputed one up to rounding. A missing or infinite number must be recorded
    as None."""
    if value is None or not math.isfinite(value):
        return recorded is None
    return isinstance(recorded, int | float) and math.isclose(recorded, value, rel_tol=CLOSE, abs_tol=CLOSE)
