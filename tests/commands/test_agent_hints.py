"""Hints of a debug run: unasked questions, shared messages, comparisons that are never true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet import Task
from ajet.cli import launcher
from ajet.commands.agent_hints import (
    hint_on_comparisons,
    hint_on_missing_question,
    hint_on_printed_task,
    hint_on_shared_messages,
    is_question_missing,
)
from ajet.config import Experiment
from ajet.rollout.components import load_workflow
from ajet.schema.call import Call
from ajet.schema.episode import Episode
from ajet.workflow import CommandWorkflow

AGENT = """
async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    question = task.main_query
    messages = [{"role": "user", "content": question}]
    reply = await client.chat.completions.create(messages=messages, max_tokens=2)
    return reply.choices[0].message.content


def reward(task, output):
    return 0.0
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: rows.jsonl}}}
  rollout: {user_workflow: agent.py->agent, num_repeat: 2, max_model_len: 128, max_response_length_in_one_turn: 8}
  task_judge: {judge_protocol: agent.py->reward}
"""
USER = {"role": "user", "content": "2 + 2?"}


def test_debug_names_the_line_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(YAML)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": [USER]}) + "\n")
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--conf", "x.yaml", "--backbone", "debug"])
    said = " ".join("".join(capsys.readouterr()).split())
    assert ended.value.code == 0
    assert all(each in said for each in ("hint: 2 of 2", "agent.py:4", "task.init_messages", "(empty)")), said


def played(task: Task, *sent: dict[str, Any]) -> Episode:
    none, floats = np.zeros(0, np.int32), np.zeros(0, np.float32)
    asked = tuple(range(len(sent)))
    call = Call(0, "a", "a", True, None, 0, none, none, floats, floats, (), "stop", asked, None, None)
    return Episode("u", task, 0, 1, "debug", messages=list(sent), calls=[call])


def text(words: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": words}


@pytest.mark.parametrize(
    ("task", "sent", "unasked"),
    [
        (Task(init_messages=[USER]), [text("")], True),
        (Task(init_messages=[USER]), [text("Answer this: ")], True),
        (Task(init_messages=[USER]), [text("Answer this:\n2 +  2?")], False),
        (Task(init_messages=[USER]), [text("be brief: 2 + 2?", "system"), text("go")], False),
        (Task(init_messages=[text("be brief", "system"), USER]), [text("be brief", "system"), text("")], True),
        (Task(init_messages=[{**USER, "content": [{"type": "text", "text": "2 + 2?"}]}]), [USER], False),
        (Task(main_query="2?"), [text("")], False),
        (Task(metadata={"goal": 2}), [text("")], True),
        (Task(metadata={"goal": 2}), [text("make 2")], False),
        (Task(env_type="lake"), [text("")], False),
    ],
)
def test_what_was_sent_decides(task: Task, sent: list[dict[str, Any]], unasked: bool) -> None:
    assert is_question_missing(played(task, *sent)) is unasked


@pytest.mark.parametrize("shown", ["{}", "Answer this: {}", "{!r}"])
def test_a_task_printed_into_a_prompt_is_named(shown: str) -> None:
    task = Task(main_query="it's 2 + 2?", metadata={"answer": "4"})
    assert "task.main_query" in hint_on_printed_task([played(task, text(shown.format(task)))])
    assert hint_on_printed_task([played(task, text(task.main_query))]) == ""


def test_no_line_of_ajets_is_named() -> None:
    hint = hint_on_missing_question([played(Task(main_query="", task_id="t", metadata={"n": 1}))], CommandWorkflow)
    assert "task.metadata" in hint and "workflow.py" not in hint


FIRST, SECOND = Task(task_id="1", main_query="What is 1 + 1?"), Task(task_id="2", main_query="What is 2 + 2?")
EXAMPLE = Task(task_id="3", main_query="What is 3 + 3?", metadata={"example": "What is 1 + 1?"})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("sent", "is_found"),
    [
        ([user(SECOND.main_query)], False),
        ([user(FIRST.main_query), user(SECOND.main_query)], True),
        ([user(SECOND.main_query), user(SECOND.main_query)], True),
        ([user(f"Example: {FIRST.main_query} 2"), user(SECOND.main_query)], False),
        ([{"role": "system", "content": "Calculate."}, user(SECOND.main_query)], False),
    ],
)
def test_shared_messages_are_found(sent: list[dict[str, Any]], is_found: bool) -> None:
    hint = hint_on_shared_messages([played(FIRST, user(FIRST.main_query)), played(SECOND, *sent)], None)
    assert ("1 episode" in hint) is is_found


def test_example_in_the_task_is_its_own() -> None:
    episodes = [
        played(FIRST, user(FIRST.main_query)),
        played(EXAMPLE, user(FIRST.main_query), user(EXAMPLE.main_query)),
    ]
    assert hint_on_shared_messages(episodes, None) == ""


def test_example_of_each_request_is_the_prompt() -> None:
    example = user(FIRST.main_query)
    assert hint_on_shared_messages([played(SECOND, example, user(SECOND.main_query))] * 2, None) == ""


def test_attempts_at_one_task_that_share_messages() -> None:
    episodes = [played(FIRST, user(FIRST.main_query)), played(FIRST, user(FIRST.main_query), user(FIRST.main_query))]
    assert "test_agent_hints.py" in hint_on_shared_messages(episodes, type("Agent", (), {"__module__": __name__}))


NEVER = [  # the line that compares, the row's answer, the agent's
    ('return float(output.metadata["final_answer"] == task.metadata["answer"])', 5, "5"),
    ('return float(output.metadata["final_answer"] == task.metadata["answer"])', "5", 5),
    ('return float(int(output.metadata["final_answer"]) == task.metadata["answer"])', "5", "5"),
    ('return float(output.metadata.get("final_answer").strip() != task.metadata.get("answer"))', 5, "5"),
    ("return float(output == task.metadata['answer'])", "5", "5"),
    ("return float(output.metadata['final_answer'] == task)", "5", "5"),
    ("return float(task.metadata['answer'] == output.metadata['final_answer'])", ["5"], "5"),
    (
        "row = task.metadata; told = row['answer']; said = output.metadata['final_answer']; return float(said == told)",
        5,
        "5",
    ),
]
FINE = [
    ('return float(output.metadata["final_answer"] == task.metadata["answer"])', "5", "5"),
    ('return float(output.metadata["final_answer"] == str(task.metadata["answer"]))', 5, "5"),
    ('return float(float(output.metadata["final_answer"]) == task.metadata["answer"])', 5, "5"),
    ('return float(parsed(output.metadata["final_answer"]) == task.metadata["answer"])', 5, "5"),
    ("said = output.metadata['final_answer']; said = int(said); return float(said == task.metadata['answer'])", 5, "5"),
    ("return float(output.metadata['missing'] == task.metadata['answer'])", 5, "5"),
    ("return float(task.metadata['answer'] == None)", 5, "5"),
    ("return float(task.metadata['answer'] == 'unknown')", 5, "5"),
    ("return float(task.metadata['answer'] in output.metadata['final_answer'])", "5", "5"),
]


def hints(folder: Path, code: str, row: Any, said: Any, **named: Any) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "code.py").write_text(code)
    made = Experiment.from_dict({"ajet": named}, base=folder)
    episode = Episode("u", Task(metadata={"answer": row}), 0, 1, "debug", metadata={"final_answer": said})
    return hint_on_comparisons(made, episode, load_workflow(made) if "rollout" in named else None)


def judged(folder: Path, line: str, row: Any, said: Any) -> list[str]:
    code = f"def parsed(x): return int(x)\n\n\ndef reward(task, output):\n    {line}\n"
    return hints(folder, code, row, said, task_judge={"judge_protocol": "code.py->reward"})


@pytest.mark.parametrize(("line", "row", "said"), NEVER)
def test_a_comparison_that_is_never_true_is_named(tmp_path: Path, line: str, row: Any, said: Any) -> None:
    (hint,) = judged(tmp_path, line, row, said)
    assert "code.py:5" in hint and "str(" in hint


@pytest.mark.parametrize(("line", "row", "said"), FINE)
def test_what_may_be_equal_is_not(tmp_path: Path, line: str, row: Any, said: Any) -> None:
    assert judged(tmp_path, line, row, said) == []


def test_classes_and_agents_are_read_likewise(tmp_path: Path) -> None:
    code = """
from ajet import Workflow

class Right:
    def __init__(self, config): pass

    def compute_reward(self, workflow_task, workflow_output):
        right = workflow_output.metadata["final_answer"] == workflow_task.task.metadata["answer"]
        return float(right), right

class Agent(Workflow):
    async def execute(self, workflow_task, tuner):
        reply = await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=[])
        return reply.choices[0].message.content.strip() == workflow_task.task.metadata["answer"]
"""
    named = {"rollout": {"user_workflow": "code.py->Agent"}, "task_judge": {"judge_protocol": "code.py->Right"}}
    one, other = hints(tmp_path, code, 5, "5", **named)
    assert "code.py:8" in one and "code.py:14" in other
    function = """
async def agent(task, tuner):
    reply = await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=[])
    return reply.choices[0].message.content.strip() == task.metadata["answer"]
"""
    (hint,) = hints(tmp_path / "own", function, 5, "5", rollout={"user_workflow": "code.py->agent"})
    assert "code.py:4" in hint
    assert hints(tmp_path, code, "5", "5", **named) == []


def test_code_without_a_source_is_left_alone(tmp_path: Path) -> None:
    assert hints(tmp_path, "reward = max", 5, "5", task_judge={"judge_protocol": "code.py->reward"}) == []
    lambdas = "reward = lambda task, output: float(output == 1)"
    assert hints(tmp_path, lambdas, 5, "5", task_judge={"judge_protocol": "code.py->reward"}) == []
