"""MathAnswerJudge: is the final answer the right number, or expression?

Invariant: 1 where the answer equals the reference by value, 0 where it does not or there is none; no score where the
task itself has no reference.
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

    The answer is what stands in the reply's last box, else in its <answer> tags, else after ####, else the whole text
    when it is one short line; of a task whose `data_source` is gaia, in its first <answer> tags. The reference is what
    follows #### (as in GSM8K), what the last box holds (as in MATH's solutions), or the whole field."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        require_math_verify()

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        """Reward 1 or 0; no score when the task has no `answer`. Raises JudgeFailure when nothing can be compared."""
        reference = extract_reference(workflow_task.task.metadata.get("answer"))
        if not reference:
            return Verdict(None, None, f"no score: task {workflow_task.task.task_id} has no answer to compare with")
        text = answer_text(workflow_output.metadata.get("final_answer"))
        first = workflow_task.task.metadata.get("data_source") == "gaia"
        given = (
            (tagged_answer(text, first=True) if first else None)
            or extract_answer(text)
            or _short_answer(strip_thoughts(text))
        )
        if not given:
            return Verdict(0.0, False, "no answer found in the reply")
        return compare_answers(given, reference)


def extract_reference(wanted: Any) -> str:
    """What of a row's answer is compared with: what follows ####, else what its last box holds, as in MATH's solutions,
    else all of it; "" for none."""
    return hash_answer(wanted) or boxed_answer(wanted) or answer_text(wanted).strip()


def compare_answers(given: str, reference: str) -> Verdict:
    """1 where they are equal by value, else 0. Raises JudgeFailure when nothing can be compared."""
    right = equal(given, reference)
    return Verdict(float(right), right, f"{given[:80]} {'equals' if right else 'is not'} {reference[:80]}")


def _short_answer(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 80 and "\n" not in text else ""
