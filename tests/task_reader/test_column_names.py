"""Columns are found by name as people write names, in every reader; what a name could mean twice is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.config import Experiment
from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader import open_reader
from ajet.task_reader.rows import BadRowError, ColumnNames, task_of
from ajet.train.sft.rows import read_files

USER, REPLY = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
CODES = {"csv": "huggingface_dat_repo", "parquet": "huggingface_dat_repo", "jsonl": "jsonl_dataset_file"}


def tasks_of(folder: Path, ending: str, row: Mapping[str, Any], **columns: str) -> list[Task]:
    """The tasks of a file of one row."""
    import pandas

    file = folder / f"rows.{ending}"
    if ending == "jsonl":
        file.write_text(json.dumps(row) + "\n")
    elif ending == "csv":
        pandas.DataFrame([row]).to_csv(file, index=False, encoding="utf-8-sig")
    else:
        pandas.DataFrame([row]).to_parquet(file)
    kind = CODES[ending]
    section = {"training": {"file_path": file.name}} if ending == "jsonl" else {"dataset_path": file.name}
    reader = {"type": kind, kind: section, "columns": columns}
    return list(open_reader(Experiment.from_dict({"ajet": {"task_reader": reader}}, base=folder)).tasks("train"))


@pytest.mark.parametrize("ending", CODES)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_case_blanks_and_marks_do_not_matter(tmp_path: Path, ending: str, mark: str) -> None:
    (task,) = tasks_of(tmp_path, ending, {f"{mark}Question": "2 + 2?", " ANSWER ": "4", "ID": "x", " Level": "1"})
    assert (task.main_query, task.metadata["answer"], task.task_id) == ("2 + 2?", "4", "x")
    assert task.metadata["Level"] == "1" and task.metadata["Question"] == "2 + 2?"


@pytest.mark.parametrize("ending", CODES)
def test_columns_map_compares_names_alike(tmp_path: Path, ending: str) -> None:
    row = {"\ufeffFrage": "2 + 2?", "Expected answer ": "4", "Nr": "7"}
    (task,) = tasks_of(tmp_path, ending, row, main_query="frage", answer="expected Answer", task_id="NR")
    assert (task.main_query, task.metadata["answer"], task.task_id) == ("2 + 2?", "4", "7")


@pytest.mark.parametrize("ending", CODES)
def test_two_columns_of_one_name_are_refused(tmp_path: Path, ending: str) -> None:
    row = {"Question": "one?", "question": "two?"}
    with pytest.raises(TaskError) as refused:
        tasks_of(tmp_path, ending, row)
    assert all(each in refused.value.what for each in ("'Question'", "'question'", "task_reader.columns"))
    (task,) = tasks_of(tmp_path, ending, row, main_query="Question")
    assert task.main_query == "one?"


def test_an_empty_twin_is_no_conflict() -> None:
    assert task_of({"question": None, "Question": "q"}, ColumnNames()).main_query == "q"


def test_a_missing_column_names_the_nearest() -> None:
    with pytest.raises(BadRowError, match="did you mean Question text?"):
        task_of({"Question text": "q", "answer": "a"}, ColumnNames("question_text"))


NAMES = st.sampled_from(["main_query", "question", "query", "prompt", "problem", "messages"])


@settings(max_examples=50)
@given(NAMES, st.sampled_from(["", " ", "\t", "\ufeff", "\ufeff "]), st.sampled_from(["", " ", "\n"]), st.booleans())
def test_every_usual_name_is_found_however_written(name: str, before: str, after: str, upper: bool) -> None:
    written = before + (name.upper() if upper else name.title()) + after
    assert task_of({"other": 1, written: "q"}, ColumnNames()).main_query == "q"


@pytest.mark.parametrize("name", ["messages", "Messages", "prompt", "question"])
def test_messages_open_the_dialogue(name: str) -> None:
    task = task_of({name: [USER], "answer": "4"}, ColumnNames())
    assert (task.main_query, task.init_messages, task.metadata["answer"]) == ("", [USER], "4")


def test_messages_of_the_task_itself_win() -> None:
    for other in ([], [REPLY]):
        assert task_of({"messages": other, "init_messages": [USER]}, ColumnNames()).init_messages == [USER]


def test_a_last_reply_is_the_answer_not_the_prompt() -> None:
    task = task_of({"messages": [USER, REPLY, USER, {"role": "assistant", "content": "four"}]}, ColumnNames())
    assert task.init_messages == [USER, REPLY, USER] and task.metadata["answer"] == "four"
    assert task_of({"messages": [USER, REPLY], "answer": "5"}, ColumnNames()).metadata["answer"] == "5"
    named = task_of({"talk": [USER, REPLY]}, ColumnNames("talk"))
    assert named.init_messages == [USER] and named.metadata["answer"] == "4"
    begun = task_of({"prompt": [USER, REPLY]}, ColumnNames())
    assert begun.init_messages == [USER, REPLY] and "answer" not in begun.metadata


@pytest.mark.parametrize(
    ("kind", "row", "question", "answer"),
    [
        ("agentrl", {"ID": 1, "Query": "q", "Answer": "a", "Scorer": "math"}, "q", "a"),
        ("gsm8k", {"\ufeffQuestion": "q", "Answer": "so #### 4"}, "q", "4"),
        ("math", {"Problem": "q", "Solution": r"\boxed{4}", " Level": "Level 1"}, "q", "4"),
        ("gaia", {"Task_ID": "x", "question": "q", "FINAL ANSWER": "4", "level": 1}, "q", "4"),
        ("hotpotqa", {"_ID": "x", "Question": "q", "ANSWER": "4"}, "q", "4"),
    ],
)
def test_readers_of_known_files_find_them(tmp_path: Path, kind: str, row: Any, question: str, answer: str) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    reader = {"type": kind, kind: {"training": {"file_path": "rows.jsonl"}}}
    (task,) = open_reader(Experiment.from_dict({"ajet": {"task_reader": reader}}, base=tmp_path)).tasks("train")
    assert (task.main_query, task.metadata["answer"]) == (question, answer)
    assert kind != "agentrl" or task.metadata["scorer"] == "math"


def test_given_replies_are_found_likewise(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"\ufeffMessages ": [USER, REPLY]}) + "\n")
    (row,) = read_files("rows.jsonl", tmp_path, pairs=False, key="sft.train_files")
    assert [message["role"] for message in row.conversations[0].messages] == ["user", "assistant"]
