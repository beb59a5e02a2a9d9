"""A step's loss held to its tokens: computed again at the weights that its update began with.

Invariant: a loss is held where all that it follows from is known: a batch whose credit follows from the record, one
optimizer step, and a checkpoint with the weights before it. Where one of them is not, the step is counted by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.algorithm.staleness import CAP
from ajet.algorithm.weights import mini_batches
from ajet.config.schema.choices import is_reference
from ajet_proof.tokens.proof_gaps import FLOOR

if TYPE_CHECKING:
    from ajet.backbone.contract import RecordedScorer
    from ajet.config import AjetConfig
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.call import Floats

EXACT = 1e-5
"""What sums in another order may differ by: of the number itself, and where it is about 0."""
GIVEN = "nothing of it was sampled: it learned given replies"
OWN = "a loss of their own decides, and a record's code is not run"
SEVERAL = "it took several optimizer steps, and the weights between them are gone"
TIGHTENED = "engine and trainer were apart, and its importance weights were bounded by a measurement of that hour"
SKIPPED = "its loss was not finite, and no step was taken"
GONE = "no checkpoint has the weights that its update began with"
NOT_ASKED = "log-probabilities were not recomputed, or not all of them (--ids-only, --at-most)"
OTHERS = (
    "it does not follow from the settings of now, and was trained under others: the run went on with changed values"
)
NO_LOSS = "its row in metrics.jsonl has none"


def explain_missing_loss(batch: TrainingBatch, row: Mapping[str, Any], settings: AjetConfig) -> str:
    """The reason why a step whose credit follows has no loss here; "" where the loss can be computed again, given the
    weights."""
    algorithm = settings.trainer_common.algorithm
    if batch.written:
        return GIVEN
    if algorithm.policy_loss is not None and is_reference(algorithm.policy_loss):
        return OWN
    if len(mini_batches(batch.samples, settings.trainer_common.mini_batch_num)) > 1:
        return SEVERAL
    if CAP in row:
        return TIGHTENED
    if row.get("steps_skipped"):
        return SKIPPED
    return "" if {"loss", "version"} <= row.keys() else NO_LOSS


class LossChecker:
    """Computes one run's losses again. A step is given to `expect_step`, and to `check_step` when its
    weights are there."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        """Step that can be held -> the version that its update began with."""
        self._held: set[int] = set()
        self._why: Counter[str] = Counter()

    def expect_step(self, step: int, batch: TrainingBatch, row: Mapping[str, Any], settings: AjetConfig) -> None:
        """A step whose credit follows, and whose batch is this one."""
        if not batch.samples or settings.sft.objective == "dpo":  # the loss of pairs is a number of their credit
            return
        if why := explain_missing_loss(batch, row, settings):
            self._why[why] += 1
        else:
            self._before[step] = int(row["version"]) - 1

    def list_steps_from(self, version: int) -> list[int]:
        """The steps whose updates began with these weights."""
        return sorted(step for step, before in self._before.items() if before == version)

    def check_step(
        self,
        scorer: RecordedScorer,
        step: int,
        batch: TrainingBatch,
        row: Mapping[str, Any],
        reference: Sequence[Floats] | None,
        *,
        others: bool,
    ) -> list[str]:
        """What of the step's numbers does not follow. `scorer`: of the weights that its update began with; `others`:
        the step was trained under other settings than those of now."""
        self._held.add(step)
        recomputed = scorer.losses(batch, version=self._before[step], reference=reference)
        floor = FLOOR.get(scorer.dtype, FLOOR["bfloat16"])
        wrong = []
        for name, found in recomputed.items():
            allowed = floor * found.slope + EXACT * max(1.0, abs(found.value))
            recorded = row.get(name)
            if not isinstance(recorded, int | float) or not abs(recorded - found.value) <= allowed:
                wrong.append(f"{name} is {recorded} in metrics.jsonl, {found.value:.6g} ± {allowed:.2g} by its tokens")
        if wrong and others:
            self._held.discard(step)
            del self._before[step]
            self._why[OTHERS] += 1
            return []
        return wrong

    @property
    def held(self) -> int:
        """Steps whose loss was computed again."""
        return len(self._held)

    def unheld(self, *, is_complete: bool) -> Counter[str]:
        """The steps whose loss was not, by reason. `is_complete`: all was recomputed for which there are
        weights."""
        rest = len(self._before) - len(self._held)
        return +(self._why + Counter({GONE if is_complete else NOT_ASKED: rest}))
