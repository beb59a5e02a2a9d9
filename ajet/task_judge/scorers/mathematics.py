"""Scorer `math`: compares the final answer as a number or expression.

Invariant: the comparison is `MathAnswerJudge`'s; only the answer extraction may differ.
"""

from __future__ import annotations

from typing import Any

from ajet.schema.episode import Verdict
from ajet.task_judge.math_equality import require_math_verify
from ajet.task_judge.math_judge import compare_answers, extract_reference


class MathScorer:
    """Scores 1 if the answer equals the reference in value. A missing package is reported before the run."""

    def __init__(self, config: Any) -> None:
        require_math_verify()

    def __call__(self, model_answer: str, ground_truth: Any) -> Verdict:
        """Return a verdict with reward 1 for equal values, else 0. Raises JudgeFailure if no comparison is possible."""
        return compare_answers(model_answer, extract_reference(ground_truth))
