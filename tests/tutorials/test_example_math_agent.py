"""The math agent on two cores: what is demonstrated is what the agent is shown, and it learns to ask Python."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import WorkflowTask
from tests.support.chat_templates import tokenizer
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_math_agent"
CALL = '<tool_call>\n{{"name": "execute_python_code", "arguments": {}}}\n</tool_call>'


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


def told(messages: Sequence[Any], tools: Any) -> str:
    return str(tokenizer("qwen25").apply_chat_template(list(messages), tools=list(tools), tokenize=False))


@pytest.mark.extra_slow
def test_a_demonstration_is_an_attempt_of_the_agent_and_of_no_held_out_question() -> None:
    rows = of("arithmetic.py->demonstrations")()
    asked = of("arithmetic.py->asked")()
    kept_back = {frozenset(each.split()[::2]) for each in asked["validation"]}
    assert kept_back.isdisjoint(frozenset(each.split()[::2]) for each in asked["train"])
    shown = {row["messages"][1]["content"] for row in rows}
    assert shown == {f"What is {each}?" for each in asked["train"]}
    [row] = [each for each in rows if len(each["messages"]) == 5][:1]
    _, question, calling, _, answer = row["messages"]
    experiment = load_experiment(FOLDER / "arithmetic.yaml", backbone="local")
    experiment.require_ready()
    workflow = of("workflow.py->MathAgentWorkflow")()
    (task,) = (
        task for task in of("arithmetic.py->Arithmetic")(None).tasks("train") if task.main_query == question["content"]
    )
    said = CALL.format(calling["tool_calls"][0]["function"]["arguments"]), answer["content"]
    with scene(*said, config=experiment.config) as played:
        output = asyncio.run(workflow.execute(WorkflowTask(task=task), played.tuner))
        capture = played.session.close()
    messages = [{**each, "content": each["content"] or ""} for each in json.loads(json.dumps(capture.messages))]
    assert told(messages, capture.tools[0]) == told(row["messages"], row["tools"])
    judge = of(experiment.config.ajet.task_judge.judge_protocol)(None)
    right = answer["content"] == f"\\boxed{{{task.metadata['answer'].removeprefix('#### ')}}}"
    assert judge.compute_reward(WorkflowTask(task=task), output).reward == right


@pytest.mark.extra_slow
def test_it_learns(tmp_path: Path) -> None:
    prints(FOLDER / "arithmetic.py", tmp_path / "demonstrations.jsonl")
    model = taught(FOLDER / "sft.yaml", tmp_path)
    held_out, _ = learned(FOLDER / "arithmetic.yaml", tmp_path, "arithmetic", model)
    assert held_out[0] <= 0.3 and held_out[-1] >= 0.6, held_out
