"""The scorer `math`: is the final answer the right number, or expression?

Invariant: it is `MathAnswerJudge`'s comparison; only where the answer stands may be said otherwise.
"""

from __future__ import annotations

from typing import Any

from ajet.schema.episode import Verdict
from ajet.task_judge.math_equality import require
from ajet.task_judge.math_judge import compared, reference_of


class MathScorer:
    """Made once a run, so that a missing package is said before it."""

    def __init__(self, config: Any) -> None:
        require()

    def __call__(self, model_answer: str, ground_truth: Any) -> Verdict:
        """1 where they are equal by value, else 0. Raises JudgeFailure when nothing can be compared."""
        return compared(model_answer, reference_of(ground_truth))
