"""Tasks of a reader of one's own that JSON cannot hold, before they cost anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.config import load_experiment
from ajet.schema.errors import TaskError
from ajet.task_reader import open_reader

READER = """
from datetime import date
from ajet import Task

class Dates:
    def __init__(self, config):
        pass

    def tasks(self, split):
        return [Task(main_query="when?", metadata={{"answer": "1"}}), Task(main_query="when?", metadata={value})]

async def agent(task, tuner):
    return "now"

def right(task, output):
    return 1.0
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: "dates.py->Dates"}
  rollout: {user_workflow: "dates.py->agent", num_repeat: 2}
  task_judge: {judge_protocol: "dates.py->right"}
  data: {train_batch_size: 1}
"""
ODD = {
    "date": "{'day': date(2024, 1, 5)}",
    "bytes": "{'rows': [{'raw': b'x'}]}",
    "set": "{'any': {1, 2}}",
    "key": "{'by': {1: 'one'}}",
    "surrogate": "{'text': '\\ud800'}",
}


def project(folder: Path, value: str) -> Path:
    (folder / "dates.py").write_text(READER.format(value=value))
    (folder / "x.yaml").write_text(YAML)
    return folder / "x.yaml"


@pytest.mark.parametrize("kind", ODD)
def test_task_that_json_cannot_hold_is_named(kind, tmp_path):
    reader = open_reader(load_experiment(project(tmp_path, ODD[kind]), backbone="debug"))
    assert len(reader.tasks("train")) == 2, "a run that writes no JSON takes it"
    with pytest.raises(TaskError) as refused:
        reader.json_tasks("train")
    assert "Dates" in str(refused.value.where) and "train task 1" in str(refused.value.where)


def test_endless_integer_is_named(tmp_path):
    reader = open_reader(load_experiment(project(tmp_path, "{'n': 10 ** 5000}"), backbone="debug"))
    with pytest.raises(TaskError) as refused:
        reader.tasks("train")
    assert "train task 1" in str(refused.value.where)


def test_what_json_holds_is_taken(tmp_path):
    odd = "{'n': None, 'f': 0.5, 'list': (1, [True, 'ü']), 'o': {'': {}}}"
    assert len(open_reader(load_experiment(project(tmp_path, odd), backbone="debug")).json_tasks("train")) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--conf", "x.yaml", "--backbone", "debug", "--port", "0"],
        ["eval", "--conf", "x.yaml", "--training", "--model", "m@http://127.0.0.1:9/v1", "--mark", "marked.jsonl"],
    ],
    ids=["serve", "mark"],
)
def test_commands_that_write_tasks_refuse_first(arguments, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AJET_ADMIN_KEY", "0123456789abcdef0123456789abcdef")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-test")
    project(tmp_path, ODD["date"])
    with pytest.raises(SystemExit) as ended:
        launcher.main(arguments)
    said = "".join(capfd.readouterr())
    assert ended.value.code == 2 and " task 1" in said and "Traceback" not in said, said
