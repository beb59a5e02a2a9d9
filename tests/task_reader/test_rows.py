"""Rows that ask nothing are refused before anything runs, with their columns and what to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet.cli import launcher
from ajet.config import Experiment
from ajet.schema.errors import TaskError
from ajet.task_reader import open_reader
from ajet.task_reader.rows import BadRowError, ColumnNames, task_of

AGENT = """
from pathlib import Path

async def agent(task, tuner):
    Path("played").touch()
    return "yes"

def reward(task, output):
    return 1.0
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader:
    type: KIND
    jsonl_dataset_file: {training: {file_path: rows.jsonl}, validation: {file_path: rows.jsonl}}
    huggingface_dat_repo: {dataset_path: rows.csv, validation_split: train}
  rollout: {user_workflow: agent.py->agent, num_repeat: 1, max_model_len: 64, max_response_length_in_one_turn: 8}
  task_judge: {judge_protocol: agent.py->reward}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    for kind in ("jsonl_dataset_file", "huggingface_dat_repo"):
        (tmp_path / f"{kind}.yaml").write_text(YAML.replace("KIND", kind))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"Customer question ": "2?", "Target": "2"}) + "\n")
    (tmp_path / "rows.csv").write_text("Customer question;Target\n2?;2\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl_dataset_file", "huggingface_dat_repo"])
@pytest.mark.parametrize(
    "typed",
    [
        ["config", "validate", "--conf", "YAML"],
        ["plan", "YAML"],
        ["--conf", "YAML", "--dry-run"],
        ["--conf", "YAML", "--backbone", "debug"],
        ["--conf", "YAML", "--backbone", "local"],
        ["eval", "YAML"],
    ],
    ids=lambda typed: " ".join(typed).replace("YAML", "").strip(),
)
def test_each_command_refuses_before_it_plays(
    project: Path, kind: str, typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        launcher.main([each.replace("YAML", f"{kind}.yaml") for each in typed])
    said = " ".join("".join(capsys.readouterr()).split())
    assert ended.value.code == 2 and not (project / "played").exists()
    named = ("Customer question, Target", "columns.main_query", "require_question=false", "rows.", "main_query")
    assert all(each in said for each in named), said


def test_tune_refuses_rows_that_ask_nothing(project: Path) -> None:
    with pytest.raises(TaskError) as refused:
        ajet.tune(
            agent="agent.py->agent", reward="agent.py->reward", tasks=[{"target": 2}], model="embedded:tiny-tools"
        )
    assert "target" in refused.value.what and "require_question" in refused.value.do
    assert not (project / "played").exists()


def opened(folder: Path, *rows: dict[str, Any], **settings: Any) -> list[ajet.Task]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = {"type": "jsonl_dataset_file", "jsonl_dataset_file": {"training": {"file_path": "rows.jsonl"}}}
    given = {"task_reader": {**reader, **settings.pop("task_reader", {})}, **settings}
    return list(open_reader(Experiment.from_dict({"ajet": given}, base=folder)).tasks("train"))


def test_a_workflow_may_want_rows_without_a_question(tmp_path: Path) -> None:
    row = {"goal": 3, "nums": [1, 2]}
    (task,) = opened(tmp_path, row, task_reader={"require_question": False})
    assert (task.main_query, task.init_messages, task.metadata) == ("", [], row)


@pytest.mark.parametrize("use", ["http://127.0.0.1:1", "gymnasium:FrozenLake-v1", "world.py->World"])
def test_an_environment_opens_the_dialogue_itself(tmp_path: Path, use: str) -> None:
    assert len(opened(tmp_path, {"seed": 3}, environment={"use": use})) == 1
    assert len(opened(tmp_path, {"seed": 3, "env_type": "lake"})) == 1
    with pytest.raises(TaskError):
        opened(tmp_path, {"seed": 3}, environment={"use": "http://127.0.0.1:1/mcp"})


def test_the_bad_row_is_named_and_may_be_skipped(tmp_path: Path) -> None:
    rows = [{"question": "2?"}, {"question": None, "answer": "2"}]
    with pytest.raises(TaskError) as refused:
        opened(tmp_path, *rows)
    assert refused.value.where.endswith("rows.jsonl:2")
    assert [task.main_query for task in opened(tmp_path, *rows, task_reader={"on_bad_row": "skip"})] == ["2?"]
    with pytest.raises(TaskError) as none_left:
        opened(tmp_path, rows[1], task_reader={"on_bad_row": "skip"})
    assert "answer" in none_left.value.what


ASKED = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2?"}]
REPLIED = [*ASKED, {"role": "assistant", "content": "2"}]


@pytest.mark.parametrize(
    ("row", "nearest"),
    [
        ({"Frage": "2?", "answer": "2"}, "Frage"),
        ({"id": "a", "answer": "2", "text": "2?"}, "text"),
        ({"qestion": "2?", "text": "no"}, "qestion"),
        ({"Text": "no", "User query": "2?"}, "User query"),
        ({"input": {"Question": "2?"}, "gold": 2}, "input.Question"),
        ({"level": 2, "the prompts": [{"role": "user", "content": "2?"}]}, "the prompts"),
        ({"extra_info": {"question": "no"}, "chat_prompts": ASKED}, "chat_prompts"),
        ({"qestion": "no", "prompts_of_mine": ASKED, "tags": ["a"]}, "prompts_of_mine"),
        ({"chosen": REPLIED, "rejected": REPLIED, "qestion": "2?"}, "qestion"),
    ],
)
def test_the_likeliest_column_is_named(row: dict[str, Any], nearest: str) -> None:
    with pytest.raises(BadRowError) as refused:
        task_of(row, ColumnNames(require_question=True))
    assert f'columns.main_query="{nearest}"' in refused.value.do
    assert task_of(row, ColumnNames(nearest, require_question=True)).main_query == "2?" or "prompts" in nearest


def test_numbers_alone_name_no_column() -> None:
    with pytest.raises(BadRowError) as refused:
        task_of({"target": 3, "nums": 2}, ColumnNames(require_question=True))
    assert "columns.main_query" not in refused.value.do and "require_question=false" in refused.value.do
