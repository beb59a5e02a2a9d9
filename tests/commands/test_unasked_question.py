"""Debug says where the model is not shown the task's question, with the line that reads the empty field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet import Task
from ajet.cli import launcher
from ajet.commands.agent_hints import is_unasked, printed_task_hint, unasked_hint
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
    assert is_unasked(played(task, *sent)) is unasked


@pytest.mark.parametrize("shown", ["{}", "Answer this: {}", "{!r}"])
def test_a_task_printed_into_a_prompt_is_named(shown: str) -> None:
    task = Task(main_query="it's 2 + 2?", metadata={"answer": "4"})
    assert "task.main_query" in printed_task_hint([played(task, text(shown.format(task)))])
    assert printed_task_hint([played(task, text(task.main_query))]) == ""


def test_no_line_of_ajets_is_named() -> None:
    hint = unasked_hint([played(Task(main_query="", task_id="t", metadata={"n": 1}))], CommandWorkflow)
    assert "task.metadata" in hint and "workflow.py" not in hint
