"""MathAnswerJudge: compares the final answer with the reference as numbers or expressions.

Invariant: 1 for an equal value, 0 for another or a missing answer, no score for a task without a reference.
"""

from __future__ import annotations

from typing import Any

from ajet.schema.episode import Verdict
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge
from ajet.task_judge.extraction import (
    answer_text,
    boxed_answer,
    extract_answer,
    hash_answer,
    strip_thoughts,
    tagged_answer,
)
from ajet.task_judge.math_equality import equal, require_math_verify


class MathAnswerJudge(BaseJudge):
    """Compares the workflow's `metadata["final_answer"]` with the task's `metadata["answer"]`.

    The answer is the content of the reply's last box, else of its <answer> tags, else the text after ####, else the
    complete text if short. For a task with `data_source` gaia the first <answer> tags count. The reference is the text
    after #### (GSM8K), the content of the last box (MATH), or the complete field.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        require_math_verify()

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        """Return reward 1 or 0; no score without a reference. Raises JudgeFailure if no comparison is possible."""
        reference = extract_reference(workflow_task.task.metadata.get("answer"))
        if not reference:
            return Verdict(None, None, f"no score: task {workflow_task.task.task_id} has no answer to compare with")
        text = answer_text(workflow_output.metadata.get("final_answer"))
        is_gaia = workflow_task.task.metadata.get("data_source") == "gaia"
        answer = (
            (tagged_answer(text, first=True) if is_gaia else None)
            or extract_answer(text)
            or _short_answer(strip_thoughts(text))
        )
        if not answer:
            return Verdict(0.0, False, "the reply contains no answer")
        return compare_answers(answer, reference)


def extract_reference(expected: Any) -> str:
    """Return the reference in a row's answer: the text after ####, else the last box (MATH), else the complete text.

    Returns:
        "" for an empty answer.
    """
    return hash_answer(expected) or boxed_answer(expected) or answer_text(expected).strip()


def compare_answers(answer: str, reference: str) -> Verdict:
    """Return a verdict with reward 1 for equal values, else 0. Raises JudgeFailure if no comparison is possible."""
    is_equal = equal(answer, reference)
    return Verdict(
        float(is_equal), is_equal, f"{answer[:80]} {'equals' if is_equal else 'does not equal'} {reference[:80]}"
    )


def _short_answer(text: str) -> str:
    """Return a text that may be an answer by itself: one line of at most 80 characters. "" for longer texts."""
    text = text.strip()
    return text if len(text) <= 80 and "\n" not in text else ""
