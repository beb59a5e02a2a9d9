"""The scorer `math`: is the final answer the right number, or expression?

Invariant: it is `MathAnswerJudge`'s comparison; only where the answer stands may be said otherwise.
"""

from __future__ import annotations

from typing import Any

from ajet.schema.episode import Verdict
from ajet.task_judge.math_equality import require_math_verify
from ajet.task_judge.math_judge import compare_answers, extract_reference


class MathScorer:
    """Made once a run, so that a missing package is said before it."""

    def __init__(self, config: Any) -> None:
        require_math_verify()

    def __call__(self, model_answer: str, ground_truth: Any) -> Verdict:
        """1 where they are equal by value, else 0. Raises JudgeFailure when nothing can be compared."""
        return compare_answers(model_answer, extract_reference(ground_truth))
