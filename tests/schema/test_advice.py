"""Mistakes with what an agent and a judge are given: the hint says what to write, with the user's line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.commands.episode_panel import find_hint
from ajet.config import Experiment
from ajet.rollout.components import load_workflow
from ajet.rollout.failure import classify_exception
from ajet.schema.advice import advise_on
from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, open_judge
from ajet.workflow import ModelTuner
from tests.support.rollouts import stage

TASK = Task(main_query="2?", metadata={"question": "2?", "answer": "2", "Level": 3})
OUTPUT = WorkflowOutput(metadata={"final_answer": "2"})
TUNER = object.__new__(ModelTuner)


def mistake(code: Callable[[Any], Any], given: Any) -> str:
    with pytest.raises((AttributeError, TypeError, KeyError)) as raised:
        code(given)
    return advise_on(raised.value, TASK, OUTPUT if isinstance(given, WorkflowOutput) else None)


@pytest.mark.parametrize(
    ("code", "given", "words"),
    [
        (lambda task: task["question"], TASK, "task.metadata"),
        (lambda task: task.answer, TASK, '`task.metadata["answer"]`'),
        (lambda task: task.level, TASK, 'no column level, but question, answer, Level; did you mean "Level"?'),
        (lambda task: task.strip(), TASK, "task.main_query"),
        (lambda task: "Q: " + task, TASK, "task.main_query"),
        (lambda task: task.as_raw_openai_sdk_client(), TASK, "(task, tuner)"),
        (lambda task: task.final_answer, TASK, "(task, output)"),
        (lambda task: task.metadata["answr"], TASK, 'did you mean "answer"?'),
        (lambda task: {"tool": 1}["answr"], TASK, ""),
        (lambda output: output.strip(), OUTPUT, 'output.metadata["final_answer"]'),
        (lambda output: output["final_answer"], OUTPUT, 'output.metadata["final_answer"]'),
        (lambda output: float(output), OUTPUT, 'output.metadata["final_answer"]'),
        (lambda output: output.main_query, OUTPUT, "(task, output)"),
        (lambda output: output.answer, OUTPUT, "(task, output)"),
        (lambda output: output.metadata["answer"], OUTPUT, "(task, output)"),
        (lambda client: client.chat.completions, TUNER, "as_raw_openai_sdk_client()"),
        (lambda tuner: tuner.metadata, TUNER, "(task, tuner)"),
        (lambda tuner: tuner["x"], TUNER, "as_raw_openai_sdk_client()"),
    ],
)
def test_the_hint_says_what_to_write(code: Callable[[Any], Any], given: Any, words: str) -> None:
    found = mistake(code, given)
    assert words in found and bool(found) == bool(words), found


@pytest.mark.parametrize(("installed", "other"), [("1.0.21", '"agentscope>=2"'), ("2.0.11", '"agentscope<2" "mcp<2"')])
def test_code_for_another_agentscope_is_named(monkeypatch: pytest.MonkeyPatch, installed: str, other: str) -> None:
    monkeypatch.setattr("ajet.schema.advice.metadata.version", lambda _: installed)
    words = advise_on(ImportError("cannot import name 'Agent' from 'agentscope.agent'", name="agentscope.agent"))
    assert words.startswith(f"AgentScope {installed} is installed; code for AgentScope ") and words.endswith(other)
    assert not advise_on(ImportError("No module named 'numpi'", name="numpi"))
    assert not advise_on(TypeError("OwnModel.__init__() got an unexpected keyword argument 'model_name'"))


async def _running() -> str:
    running: Any = asyncio.ensure_future(asyncio.sleep(0))
    try:
        running["x"]
    except TypeError as problem:
        return advise_on(problem, TASK)
    finally:
        await running
    return "no error"


def test_tasks_of_asyncio_are_no_tasks_of_ours() -> None:
    assert asyncio.run(_running()) == ""


AGENTS = """
from ajet import Workflow

async def by_column(task, tuner):
    await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=[{"role": "user", "content": "hi"}])
    return task["question"]

async def client_second(question, client):
    await client.chat.completions.create(messages=[{"role": "user", "content": question}])

async def swapped(tuner, task):
    return "yes"

class Swapped(Workflow):
    async def execute(self, tuner, workflow_task):
        return "yes"

def stripped(task, output):
    return float(output.strip() == "2")

def of_task(task, output):
    return float(task.answer == "2")

def other_names(o, t):
    return float(t.metadata["answer"] == o.metadata["final_answer"])
"""


def experiment(folder: Path, **settings: Any) -> Experiment:
    (folder / "code.py").write_text(AGENTS)
    return Experiment.from_dict({"ajet": settings}, base=folder)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(AGENTS.splitlines(), 1) if text in line)


@pytest.mark.parametrize("isolation", ["thread", "loop"])
@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("by_column", "task.metadata", 'task["question"]'),
        ("client_second", "as_raw_openai_sdk_client()", "client.chat"),
    ],
)
def test_an_agents_failure_bears_hint_and_line(
    tmp_path: Path, isolation: str, name: str, words: str, line: str
) -> None:
    made = experiment(tmp_path, rollout={"user_workflow": f"code.py->{name}"})
    with stage(load_workflow(made), judge=Judge(None), isolation=isolation) as played:
        failure = played.episode().failure
    assert failure is not None and words in failure.message, failure
    assert f"code.py:{line_of(line)}" in find_hint(failure)


@pytest.mark.parametrize(
    ("name", "words", "line"),
    [
        ("stripped", 'output.metadata["final_answer"]', "output.strip()"),
        ("of_task", "metadata", "task.answer"),
        ("other_names", "(task, output)", "t.metadata"),
    ],
)
def test_a_judges_failure_bears_hint_and_line(tmp_path: Path, name: str, words: str, line: str) -> None:
    made = experiment(tmp_path, task_judge={"judge_protocol": f"code.py->{name}"})
    with pytest.raises(JudgeFailure) as raised:
        asyncio.run(open_judge(made).verdict(WorkflowTask(task=TASK), OUTPUT))
    failure = classify_exception(raised.value.__cause__ or raised.value, "judge")
    assert words in str(raised.value) and f"code.py:{line_of(line)}" in find_hint(failure)


@pytest.mark.parametrize(
    ("name", "do"),
    [("swapped", "def swapped(task, tuner):"), ("Swapped", "def execute(self, workflow_task, tuner):")],
)
def test_an_agent_in_another_order_is_refused(tmp_path: Path, name: str, do: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_workflow(experiment(tmp_path, rollout={"user_workflow": f"code.py->{name}"}))
    assert do in refused.value.do and "code.py:" in refused.value.where
