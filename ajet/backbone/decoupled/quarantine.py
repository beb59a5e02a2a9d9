"""Quarantine: keeps groups that cannot be trained on away from the trainer.

Invariant: each group is checked once, when taken. A refused group stays in the store with its reason, and is never
trained on, leased or checked again, even after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from loguru import logger

from ajet.store.contract import LeaseLostError
from ajet.store.group_check import GroupRefusedError, GroupTerms, check_group

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.store import Lease, SharedStore

MANY_IN_A_ROW = 10
"""Number of consecutive refused groups before an error is logged, repeated at each doubling."""


class Quarantine:
    """Checks the groups of one shared store. Not thread-safe."""

    def __init__(self, store: SharedStore, terms: GroupTerms) -> None:
        self._store, self._terms = store, terms
        self._in_a_row: Counter[str] = Counter()
        """Refused groups since the last usable group, by kind."""
        self._report_at = MANY_IN_A_ROW

    def admits(self, lease: Lease, task_id: str, version: int) -> bool:
        """Return True if the group may be trained on. Otherwise mark it in the store as never to be trained on.

        Args:
            lease: The group's position with its episodes.
            task_id: Id of the task at the position.
            version: newest policy version known to the trainer.

        Raises:
            TrainerFencedError: another trainer has taken over the store.
        """
        try:
            check_group(lease, task_id, version, self._terms)
        except GroupRefusedError as refused:
            self._quarantine_group(lease.order, task_id, refused)
            return False
        self._in_a_row.clear()
        self._report_at = MANY_IN_A_ROW
        return True

    def _quarantine_group(self, order: int, task_id: str, refused: GroupRefusedError) -> None:
        """Mark a group in the store as refused, and log an error if many groups in a row are refused."""
        try:
            self._store.quarantine(order, refused.reason)
        except LeaseLostError as lost:  # another process changed the group meanwhile; the next read sees the new state
            logger.warning("{}", lost)
            return
        logger.warning("the group of task {} (position {}) is not trained: it is {}", task_id, order, refused.reason)
        self._in_a_row[refused.kind] += 1
        if (count := self._in_a_row.total()) >= self._report_at:
            self._report_at *= 2
            ((kind, times),) = self._in_a_row.most_common(1)
            logger.error(
                "{} groups in a row had invalid episodes, {} of them of the kind {!r}. The last: {}. The run "
                "learns nothing until valid groups arrive: compare the samplers' settings and ajet version with "
                "the trainer's",
                count,
                times,
                kind,
                refused,
            )


def build_group_terms(experiment: Experiment, run_id: str, *, adapters: Iterable[str] = ()) -> GroupTerms:
    """Build the requirements of the run's trainer on a group.

    Raises:
        UserError: the model cannot be found.
    """
    from ajet.engine.model_source import locate_configured_model
    from ajet.engine.models import prepare_folder, read_vocabulary_size

    settings = experiment.ajet
    source = locate_configured_model(settings, experiment.base)
    return GroupTerms(
        run=run_id,
        repeats=settings.rollout.num_repeat,
        longest=settings.data.max_prompt_length + settings.data.max_response_length,
        vocabulary=read_vocabulary_size(prepare_folder(source)),
        adapters=frozenset(adapters) or None,
    )
