"""Values of tables reach tasks in one form that JSON can hold."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from ajet.config.experiment import load_defaults
from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader import open_reader
from ajet.task_reader.plain_values import BadRowError, to_plain
from ajet.train.sft.rows import read_files


def read(folder: Path, name: str, reader: str = "huggingface_dat_repo") -> list[Task]:
    files = {"type": reader}
    path = folder / name
    options = [f"ajet.task_reader.{key}={value}" for key, value in files.items()]
    if reader == "huggingface_dat_repo":
        options += [f"ajet.task_reader.{reader}.dataset_path={path}", f"ajet.task_reader.{reader}.training_split=train"]
    else:
        options += [f"ajet.task_reader.{reader}.training.file_path={path}"]
    return list(open_reader(load_defaults(overrides=options)).tasks("train"))


@pytest.mark.parametrize("place", ["rows.csv", "rows.tsv", "rows/train.csv"])
def test_cells_stay_the_text_of_the_file(tmp_path: Path, place: str) -> None:
    texts = ["NA", "null", "nan", "007", "1.10", "1e3", "+5", "9007199254740993", "2024-01-05", "True", " x "]
    mark = "\t" if place.endswith("tsv") else ","
    (tmp_path / place).parent.mkdir(exist_ok=True)
    rows = "".join(f"q{at}{mark}{text}\n" for at, text in enumerate([*texts, ""]))
    (tmp_path / place).write_text(f"question{mark}answer\n{rows}")
    tasks = read(tmp_path, place.split("/")[0])
    assert [task.metadata["answer"] for task in tasks] == [*texts, None]


@pytest.mark.parametrize("layout", ["lines.jsonl", "array.json", "rows/train.jsonl"])
def test_json_values_stay_as_written(tmp_path: Path, layout: str) -> None:
    answers = ["2024-01-05", "2024-01-05T10:00:00", 1, 2.5, "1", True, [1, 2.5], {"a": [1, "x"]}]
    rows = [json.dumps({"question": f"q{at}", "answer": answer}) for at, answer in enumerate(answers)]
    (tmp_path / layout).parent.mkdir(exist_ok=True)
    (tmp_path / layout).write_text(f"[{','.join(rows)}]" if layout.startswith("array") else "\n".join(rows))
    found = [task.metadata["answer"] for task in read(tmp_path, layout.split("/")[0])]
    assert json.dumps(found) == json.dumps(answers)


def test_parquet_values_have_one_form(tmp_path: Path) -> None:
    rows = {
        date(2024, 1, 5): "2024-01-05",
        datetime(2024, 1, 5, 10, 0, tzinfo=UTC): "2024-01-05T10:00:00+00:00",
        time(10, 30): "10:30:00",
        timedelta(seconds=90): 90.0,
        Decimal("1.10"): "1.10",
        b"\xff\x00": "/wA=",
    }
    for value, form in rows.items():
        nested = {"inner": [value, None]}
        table = pyarrow.Table.from_pylist([{"question": "q", "answer": value, "more": nested}])
        parquet.write_table(table, tmp_path / "t.parquet")
        (task,) = read(tmp_path, "t.parquet")
        assert task.metadata["answer"] == form and task.metadata["more"] == {"inner": [form, None]}
        json.dumps(task.model_dump())


def test_a_null_answer_is_as_if_missing(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"question": "q", "answer": null, "solution": "5"}\n')
    (task,) = read(tmp_path, "t.jsonl", "jsonl_dataset_file")
    assert task.metadata["answer"] == "5"


@pytest.mark.parametrize("reader", ["jsonl_dataset_file", "huggingface_dat_repo"])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"question": "q", "answer": %s}' % (b"9" * 5000), "4,300"),
        ('{"question": "caf\xe9"}'.encode("latin-1"), "UTF-8"),
    ],
)
def test_lines_that_cannot_be_read_are_named(tmp_path: Path, reader: str, line: bytes, told: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"question": "q"}\n' + line + b"\n")
    with pytest.raises(TaskError) as caught:
        read(tmp_path, "t.jsonl", reader)
    assert caught.value.where.endswith("t.jsonl:2") and told in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "cp1252"])
def test_another_encoding_is_named_with_a_way_out(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "t.jsonl").write_bytes('{"question": "\u201ccaf\xe9\u201d"}\n'.encode(encoding))
    with pytest.raises(TaskError) as caught:
        read(tmp_path, "t.jsonl", "jsonl_dataset_file")
    assert "t.jsonl:1" in caught.value.where and f"iconv -f {encoding} " in caught.value.do


@pytest.mark.parametrize(
    "value", [{"a": "\ud800"}, {"\udfff": 1}, {1: "a", "1": "b"}, [Decimal("NaN")], {"x": Decimal("-Infinity")}]
)
def test_values_without_a_faithful_form_are_refused(value):
    with pytest.raises(BadRowError):
        to_plain(value)


HOSTILE = {
    "surrogate": '"\\ud800"',
    "surrogate key": '{"\\udfff": 1}',
    "nested surrogate": '{"a": [{"b": "x\\ud800"}]}',
    "integer": "9" * 5_000,
    "negative integer": "-" + "9" * 5_000,
    "NaN": "NaN",
    "beyond floats": "1e999",
    "deep": "[" * 100_000 + "]" * 100_000,
    "less deep": "[" * 900 + "]" * 900,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("layout", ["t.jsonl", "t.json", "own.jsonl"])
def test_values_that_json_cannot_hold_name_file_and_row(tmp_path: Path, name: str, layout: str) -> None:
    rows = ['{"question": "q", "answer": "1"}', f'{{"question": "q", "answer": {HOSTILE[name]}}}']
    text = "\n".join(rows) if layout.endswith("l") else f"[{rows[0]},\n{rows[1]}]"
    (tmp_path / layout).write_text(text + "\n")
    with pytest.raises(TaskError) as caught:
        read(tmp_path, layout, "jsonl_dataset_file" if layout == "own.jsonl" else "huggingface_dat_repo")
    where = caught.value.where
    assert layout in where
    assert "deep" in name or where.endswith((":2", "row 1"))


MESSAGES = '{"messages": [{"role": "user", "content": "q"}, %s]}'
REPLY = '{"role": "assistant", "content": "a"}'
CALL = '{"id": "c", "type": "function", "function": {"name": "f", "arguments": %s}}'


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "less deep"])
def test_rows_to_learn_that_json_cannot_hold_are_named(tmp_path: Path, name: str) -> None:
    value = HOSTILE[name]
    tools = json.dumps(f'[{{"type": "function", "function": {{"name": "f", "x": {value}}}}}]')
    reply = '{"role": "assistant", "tool_calls": [%s]}' % (CALL % json.dumps(f'{{"x": {value}}}'))
    rows = {
        "value": MESSAGES % (REPLY[:-1] + f', "x": {value}}}'),
        "tools": MESSAGES[:-1] % REPLY + f', "tools": {tools}}}',
        "arguments": MESSAGES % reply,
    }
    for kind, row in rows.items():
        file = tmp_path / "t.jsonl"
        file.write_text(f"{MESSAGES % REPLY}\n{row}\n")
        if kind == "arguments" and name in ("integer", "negative integer", "deep"):  # no JSON: shown as the text
            assert len(read_files(str(file), tmp_path, pairs=False, key="k")) == 2
            continue
        with pytest.raises(TaskError) as caught:
            read_files(str(file), tmp_path, pairs=False, key="k")
        assert caught.value.where.endswith("t.jsonl:2"), kind


def test_parquet_texts_that_are_no_text_are_named(tmp_path: Path) -> None:
    cells = pyarrow.array([b"fine", b"\xed\xa0\x80"], type=pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"question": ["q", "q"], "answer": cells}), tmp_path / "t.parquet")
    with pytest.raises(TaskError) as caught:
        read(tmp_path, "t.parquet")
    assert caught.value.where.endswith("t.parquet, split train, row 1")
