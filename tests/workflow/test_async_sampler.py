"""A class that plays and evaluates: its score is the verdict, and None is no score whoever else could judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ajet import AsyncSampler, MCPSampler, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.schema.errors import JudgeFailure
from ajet.task_judge.judge import Judge
from ajet_mcp.agent import McpAgentWorkflow
from tests.support.workflow_fixtures import scene

TASK = Task(main_query="2+2?", task_id="t", metadata={"answer": "4", "answer_schema": "boxed"})


class Always:
    """A judge that would give 1 to anything."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> float:
        return 1.0


def verdict_of(workflow: Workflow) -> Any:
    task = WorkflowTask(task=TASK, episode_uuid="e", task_id="t", task_tag="T")

    async def played() -> Any:
        return await Judge(Always()).verdict(task, await workflow.execute(task, None))  # type: ignore[arg-type]

    return asyncio.run(played())


class Says(AsyncSampler):
    async def run(self, task: Task, tuner: Any) -> str:
        return "it is \\boxed{4}"


class Compares(Says):
    async def evaluate_record(self, record: Any) -> float | None:
        assert record.task is TASK
        return 0.25 if record.model_answer == record.ground_truth else 0.0


class CannotTell(Says):
    def evaluate_record(self, record: Any) -> None:  # type: ignore[override] # plain functions do too
        return None


class Wrong(Says):
    async def evaluate_record(self, record: Any) -> Any:
        return "good"


class Theirs(AsyncSampler):
    """As AgentRL's are written: the task alone, a reply of its own asking, notes in the record."""

    async def run(self, task):  # type: ignore[override]
        response = await self.create_chat_completions(messages=[{"role": "user", "content": task.main_query}])
        self.record.meta_infos["pred_ans"] = response.choices[0].message.content

    async def evaluate_record(self, record: Any) -> float:
        record.meta_infos["seen"] = True
        return float(record.meta_infos["pred_ans"] == record.task.metadata["answer"])


def test_one_of_agentrls_asks_by_itself_and_finds_its_notes_again():
    task = WorkflowTask(task=TASK, episode_uuid="e", task_id="t", task_tag="T")
    for said, reward in (("4", 1.0), ("5", 0.0)):
        with scene(said) as played:
            output = asyncio.run(Theirs().execute(task, played.tuner))
        assert output.reward == reward and output.metadata["pred_ans"] == said and played.session.calls == 1


def test_the_score_is_the_verdict_and_none_is_no_score():
    assert verdict_of(Compares()).reward == 0.25
    undecided = verdict_of(CannotTell())
    assert undecided.reward is None and "no score" in undecided.reason
    assert verdict_of(Says()).reward == 1.0, "without one of its own the judge is asked"
    with pytest.raises(JudgeFailure, match="'good'"):
        verdict_of(Wrong())


def test_the_agent_with_tools_may_evaluate_too(monkeypatch):
    async def plays(self: Any, workflow_task: Any, tuner: Any) -> WorkflowOutput:
        return WorkflowOutput(metadata={"final_answer": "4", "answer_schema": "boxed"})

    monkeypatch.setattr(McpAgentWorkflow, "execute", plays)

    class Own(MCPSampler):
        async def evaluate_record(self, record: Any) -> float:
            return float(record.model_answer == "4")

    assert verdict_of(Own()).reward == 1.0
    assert verdict_of(MCPSampler()).reward == 1.0
