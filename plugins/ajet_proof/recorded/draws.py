"""Draws the task order of a curriculum again, epoch by epoch, and compares it with the recorded tasks.

A position is a task's place in the training order. Invariant: an epoch is drawn by the class used in training
(`task_reader.order`), from the task ids of the newest checkpoint, the seed and the results of earlier steps, at the
first step that took one of its positions. If an earlier step cannot be read, the epoch is not checked but counted, by
reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.task_reader.order import CurriculumSampler

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.schema.episode import Group

NO_IDS = "no checkpoint has the ids of undrawn tasks"
NOT_ALL = "episodes of an earlier step were skipped or are missing"
TAKEN = ("tasks", "again", "discarded", "waiting", "given_up")
"""Fields of a metrics row that list positions taken by its step."""


class DrawChecker:
    """Checks the curriculum's task order of one run. Steps must be passed in ascending order.

    Args:
        frontier: state of the task order in the newest checkpoint.
        rows: training step -> its row of metrics.jsonl.
    """

    def __init__(
        self, settings: AjetConfig, frontier: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Open the curriculum of the run's settings, if it has one, with the task ids in `frontier`."""
        self._rows = rows
        self._next = 1
        self._is_complete = True
        self._task_ids_of_epoch: dict[int, list[str] | None] = {}
        """Epoch -> its task ids in order, or None if the epoch cannot be drawn again."""
        config, self._curriculum = settings.data.curriculum, None
        self._has_curriculum = config.prefer is not None
        ids = (frontier.get("curriculum") or {}).get("ids")
        if self._has_curriculum and ids:
            self._curriculum = CurriculumSampler([str(task_id) for task_id in ids], config, settings.seed)

    @property
    def held(self) -> int:
        """Number of epochs that were drawn again and compared."""
        return sum(tasks is not None for tasks in self._task_ids_of_epoch.values())

    @property
    def unheld(self) -> Counter[str]:
        """Number of epochs that could not be drawn again, by reason."""
        reason = NO_IDS if self._curriculum is None else NOT_ALL
        return +Counter({reason: sum(tasks is None for tasks in self._task_ids_of_epoch.values())})

    def check_step(self, step: int, groups: Sequence[Group]) -> Iterator[str]:
        """Yield a message for each group of a step whose task is not the one that the curriculum draws."""
        if not self._has_curriculum:
            return
        if self._curriculum is None:
            self._task_ids_of_epoch[0] = None  # the length of an epoch is not recorded, either
            return
        # The curriculum draws an epoch by the results of all earlier steps, so a skipped step with episodes ends the
        # check.
        self._is_complete = self._is_complete and all(
            not self._has_attempts(skipped) for skipped in range(self._next, step)
        )
        self._next = step + 1
        row = self._rows.get(step, {})
        # Positions are numbered through all epochs: position // size is the epoch.
        used_orders = {int(order) for name in TAKEN for order in row.get(name, ())} | {group.order for group in groups}
        size = len(self._curriculum)
        for epoch in sorted({order // size for order in used_orders if order >= 0} - self._task_ids_of_epoch.keys()):
            self._task_ids_of_epoch[epoch] = list(self._curriculum.epoch(epoch)) if self._is_complete else None
        for group in groups:
            epoch, index = divmod(group.order, size)
            drawn_task_ids = self._task_ids_of_epoch.get(epoch)
            if drawn_task_ids is not None and drawn_task_ids[index] != group.task.task_id:
                yield (
                    f"position {group.order} has task {group.task.task_id}, but the curriculum draws "
                    f"{drawn_task_ids[index]}"
                )
        self._curriculum.record_results(groups)

    def _has_attempts(self, step: int) -> bool:
        """True if a step that was not passed to `check_step` had episodes, or its row is missing."""
        row = self._rows.get(step)
        return row is None or any(row.get(name) for name in ("tasks", "again", "discarded"))
