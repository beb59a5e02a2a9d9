"""One suite over every judge: those that ajet ships, a task reader's own, a tutorial's, and users' in each shape."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment, resolve_reference
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import BaseJudge, Judge
from ajet.task_judge.math_judge import MathAnswerJudge
from ajet.task_judge.registry import make_judge_class
from ajet.task_reader import open_reader

pytestmark = pytest.mark.slow


class Plain(BaseJudge):
    """A user's, with a plain function and a tuple."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        if "answer" not in workflow_task.task.metadata:
            return None
        right = workflow_output.metadata.get("final_answer") == workflow_task.task.metadata["answer"]
        return float(right), right


class Awaited(Plain):
    """The same, `async def`, with a Verdict."""

    async def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        found = super().compute_reward(workflow_task, workflow_output)
        return found and Verdict(found[0], found[1], "compared")


def compared(task: Task, output: WorkflowOutput) -> bool | None:
    """A user's function, with whether it is right."""
    return output.metadata.get("final_answer") == task.metadata["answer"] if "answer" in task.metadata else None


async def compared_later(task: Task, output: WorkflowOutput) -> Verdict | None:
    """The same, awaited, with a Verdict."""
    right = compared(task, output)
    return None if right is None else Verdict(float(right), right, "compared")


@dataclass(frozen=True)
class Case:
    """A judge, a task, a right answer to it, and the same task without what it is judged by (None: cannot be)."""

    judge: Any
    task: Task
    right: str
    unanswerable: Task | None


def arithmetic(judge: Any, right: str = "42") -> Case:
    return Case(judge, Task(task_id="t", metadata={"answer": "42"}), right, Task(task_id="u"))


def of_the_tutorial() -> Case:
    reference = "tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge"
    return arithmetic(resolve_reference(reference, base=Path("/"))(None), "It is \\boxed{42}.")


def of_reasoning_gym() -> Case:
    section = {"type": "reasoning_gym", "reasoning_gym": {"dataset": "chain_sum", "size": 1, "validation_size": 1}}
    reader = open_reader(Experiment.from_dict({"ajet": {"task_reader": section}}, base=Path("/")))
    (task,) = reader.tasks("train")
    return Case(reader.judge, task, task.metadata["answer"], None)


CASES: dict[str, Callable[[], Case]] = {
    "math": lambda: arithmetic(MathAnswerJudge(None), "so \\boxed{42}"),
    "tutorial": of_the_tutorial,
    "reasoning_gym": of_reasoning_gym,
    "plain": lambda: arithmetic(Plain(None)),
    "awaited": lambda: arithmetic(Awaited(None)),
    "function": lambda: arithmetic(make_judge_class(compared, "judge.py->compared", key="test")(None)),
    "async_function": lambda: arithmetic(make_judge_class(compared_later, "judge.py->later", key="test")(None)),
}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def verdict(case: Case, answer: Any, task: Task | None = None) -> Verdict:
    output = WorkflowOutput(metadata={"final_answer": answer})
    return asyncio.run(Judge(case.judge).verdict(WorkflowTask(task=task or case.task), output))


def test_the_right_answer_is_a_success(case: Case) -> None:
    found = verdict(case, case.right)
    assert (found.reward, found.success) == (1.0, True)


@pytest.mark.parametrize("answer", ["", "I do not know.", "\\boxed{}", "-1", "\x00\ud7ff<think>", "{" * 500])
def test_another_answer_is_none_and_never_an_error(case: Case, answer: str) -> None:
    found = verdict(case, answer)
    assert found.success is False and found.reward is not None and 0.0 <= found.reward < 1.0


def test_no_answer_is_never_a_success(case: Case) -> None:
    assert not verdict(case, None).success


def test_what_cannot_be_judged_is_no_score_and_not_0(case: Case) -> None:
    if case.unanswerable is None:
        pytest.skip("its tasks bring what they are judged by")
    assert verdict(case, case.right, case.unanswerable).reward is None


def test_the_workflows_own_reward_wins(case: Case) -> None:
    output = WorkflowOutput(reward=0.25, is_success=False, metadata={"final_answer": case.right})
    found = asyncio.run(Judge(case.judge).verdict(WorkflowTask(task=case.task), output))
    assert (found.reward, found.success) == (0.25, False)


def test_the_same_attempt_is_judged_alike_and_left_as_it_is(case: Case) -> None:
    task = WorkflowTask(task=case.task)
    output = WorkflowOutput(metadata={"final_answer": case.right, "other": [1]})
    before = deepcopy((task.model_dump(), output.model_dump()))
    first, second = (asyncio.run(Judge(case.judge).verdict(task, output)) for _ in range(2))
    assert first == second and (task.model_dump(), output.model_dump()) == before


def test_several_threads_ask_at_once(case: Case) -> None:
    found: list[float | None] = []
    failed: list[BoundaryError] = []

    def ask(answer: str) -> None:
        try:
            found.append(verdict(case, answer).reward)
        except BoundaryError as failure:
            failed.append(failure)

    threads = [threading.Thread(target=ask, args=(case.right if n % 2 else "-1",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and sorted(reward or 0.0 for reward in found)[4:] == [1.0] * 4
