"""Recomputes the loss of training steps with the weights before their update.

Credit means the advantages and weights of a step's episodes. Invariant: a loss is checked if the credit can be
recomputed from the run's files, the update was one optimizer step, and a checkpoint has the weights before it. Other
steps are not checked but counted, by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.algorithm.staleness import CAP
from ajet.algorithm.weights import split_mini_batches
from ajet.config.plugin import load_code
from ajet.config.plugins import find_part
from ajet.config.schema.choices import is_reference
from ajet_proof.tokens.proof_gaps import FLOOR

if TYPE_CHECKING:
    from ajet.backbone.local.scorer import LocalScorer
    from ajet.config import AjetConfig
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.call import Floats

EXACT = 1e-5
"""Tolerance for sums in another order: relative, and absolute near 0."""
GIVEN = "it trained on given replies, without sampled tokens"
OWN = "it used a loss function of the user, and code of a record is not run"
SEVERAL = "it took several optimizer steps, without weights in between"
TEACHER = "it compared the policy with a teacher's distribution, which is not recorded"
TIGHTENED = "its importance weights were bounded by a measured engine/trainer mismatch, which is not recorded"
SKIPPED = "its loss was not finite, so the optimizer step was skipped"
GONE = "no checkpoint has the weights before its update"
NOT_ASKED = "log-probabilities were not recomputed, or not all of them (--ids-only, --at-most)"
OTHERS = "it was trained with other settings than the current ones: the run was resumed with changed values"
NO_LOSS = "its row in metrics.jsonl has no loss"


def explain_missing_loss(batch: TrainingBatch, row: Mapping[str, Any], settings: AjetConfig) -> str:
    """Return why a step's loss cannot be recomputed, or "" if only the weights before its update are needed.

    Args:
        batch: the step's batch with recomputed credit.
        row: the step's row of metrics.jsonl.
        settings: the run's settings.
    """
    algorithm = settings.trainer_common.algorithm
    if batch.written:
        return GIVEN
    if algorithm.policy_loss is not None and is_reference(algorithm.policy_loss):
        return OWN
    part = find_part("algorithm", algorithm.adv_estimator)
    if part is not None and "distribution" in load_code(part.code).needs:
        return TEACHER
    if len(split_mini_batches(batch.samples, settings.trainer_common.mini_batch_num)) > 1:
        return SEVERAL
    if CAP in row:
        return TIGHTENED
    if row.get("steps_skipped"):
        return SKIPPED
    return "" if {"loss", "version"} <= row.keys() else NO_LOSS


class LossChecker:
    """Recomputes the losses of one run and counts the steps.

    `expect_step` registers a step, and `check_step` compares its loss once the weights before its update are loaded.
    """

    def __init__(self) -> None:
        self._version_before_step: dict[int, int] = {}
        """Step -> policy version before its update."""
        self._held_steps: set[int] = set()
        self._skip_reasons: Counter[str] = Counter()

    def expect_step(self, step: int, batch: TrainingBatch, row: Mapping[str, Any], settings: AjetConfig) -> None:
        """Register a step whose loss shall be checked, or count why it cannot be.

        Args:
            batch: the step's batch with recomputed credit.
            row: the step's row of metrics.jsonl.
        """
        if not batch.samples or settings.sft.objective == "dpo":  # the loss of pairs is a number of their credit
            return
        if reason := explain_missing_loss(batch, row, settings):
            self._skip_reasons[reason] += 1
        else:
            self._version_before_step[step] = int(row["version"]) - 1

    def list_steps_from(self, version: int) -> list[int]:
        """Return the registered steps whose update started from this policy version, in ascending order."""
        return sorted(step for step, version_before in self._version_before_step.items() if version_before == version)

    def check_step(
        self,
        scorer: LocalScorer,
        step: int,
        batch: TrainingBatch,
        row: Mapping[str, Any],
        reference: Sequence[Floats] | None,
        *,
        has_changed_settings: bool,
    ) -> list[str]:
        """Recompute the loss of a registered step, and return a message for each number that differs from its row.

        Args:
            scorer: Computes losses with the weights before the step's update.
            batch: The step's batch with recomputed credit.
            row: The step's row of metrics.jsonl.
            reference: Log-probabilities of each sample by the reference model, or None without a KL term.
            has_changed_settings: True if the step was trained under other settings than the present ones. A difference
                then is no error, and the step counts as unchecked.
        """
        self._held_steps.add(step)
        recomputed = scorer.losses(batch, version=self._version_before_step[step], reference=reference)
        floor = FLOOR.get(scorer.dtype, FLOOR["bfloat16"])
        problems = []
        for name, loss in recomputed.items():
            allowed = floor * loss.slope + EXACT * max(1.0, abs(loss.value))
            # `not (<=)` instead of `>` also finds NaN.
            recorded = row.get(name)
            if not isinstance(recorded, int | float) or not abs(recorded - loss.value) <= allowed:
                problems.append(
                    f"{name} is {recorded} in metrics.jsonl, but {loss.value:.6g} ± {allowed:.2g} when computed "
                    "from its tokens"
                )
        if problems and has_changed_settings:
            self._held_steps.discard(step)
            del self._version_before_step[step]
            self._skip_reasons[OTHERS] += 1
            return []
        return problems

    @property
    def held(self) -> int:
        """Number of steps with a recomputed loss."""
        return len(self._held_steps)

    def unheld(self, *, is_complete: bool) -> Counter[str]:
        """Return the number of steps without a recomputed loss, by reason.

        Args:
            is_complete: True if every log-probability was recomputed whose weights are available.
        """
        unchecked_count = len(self._version_before_step) - len(self._held_steps)
        return +(self._skip_reasons + Counter({GONE if is_complete else NOT_ASKED: unchecked_count}))
