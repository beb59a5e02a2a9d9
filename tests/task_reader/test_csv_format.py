"""CSV files as spreadsheet programs write them are read, or refused with what to do."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.config import Experiment
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.task_reader import open_reader
from ajet.task_reader.csv_format import find_csv_format

ROWS = [["Question", "Answer"], ["What, then; is 2|2?", "4"], ["Größe\nüber 1,5?", "ja"], ["Leer?", ""]]


def written(separator: str, rows: list[list[str]] = ROWS) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=separator).writerows(rows)
    return out.getvalue()


def tasks_of(file: Path, kind: str = "huggingface_dat_repo") -> list[Task]:
    section = {"dataset_path": file.name}
    if kind != "huggingface_dat_repo":
        section = {"training": {"file_path": file.name}}  # type: ignore[dict-item]
    made = Experiment.from_dict({"ajet": {"task_reader": {"type": kind, kind: section}}}, base=file.parent)
    return list(open_reader(made).tasks("train"))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_marked_encodings_are_read(tmp_path: Path, separator: str, encoding: str) -> None:
    file = tmp_path / "t.CSV"
    file.write_bytes(written(separator).encode(encoding))
    first, second, third = tasks_of(file)
    assert (first.main_query, first.metadata["answer"]) == ("What, then; is 2|2?", "4")
    assert second.main_query.split() == ["Größe", "über", "1,5?"] and second.metadata["answer"] == "ja"
    assert third.metadata["Answer"] is None


def test_a_folder_of_semicolon_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text(written(";"))
    assert [task.metadata["answer"] for task in tasks_of(tmp_path / "data")[:2]] == ["4", "ja"]


@pytest.mark.parametrize("kind", ["huggingface_dat_repo", "jsonl_dataset_file"])
@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le"])
def test_an_unmarked_encoding_is_named_with_its_line(tmp_path: Path, kind: str, encoding: str) -> None:
    lines = kind == "jsonl_dataset_file"
    text = '{"question": "2?"}\n{"question": "Grö\u00dfe \u201eok\u201c?"}\n' if lines else written(";", [*ROWS[::2]])
    file = tmp_path / ("t.jsonl" if lines else "t.csv")
    file.write_bytes((text if lines else text.replace("ja", "„ja“")).encode(encoding))
    with pytest.raises(UserError) as refused:
        tasks_of(file, kind)
    assert encoding in refused.value.what and f"iconv -f {encoding} -t utf-8 {file.name}" in refused.value.do
    assert refused.value.where.endswith(f"{file.name}:{1 if encoding.startswith('utf') else 2}")


def test_json_lines_in_utf16_are_named_by_each_reader(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes('{"question": "2?"}\n'.encode("utf-16"))
    for kind in ("huggingface_dat_repo", "jsonl_dataset_file", "gsm8k"):
        with pytest.raises(UserError) as refused:
            tasks_of(file, kind)
        assert "iconv -f utf-16" in refused.value.do and refused.value.where.endswith("t.jsonl:1")


@pytest.mark.parametrize("name", ["t.xlsx", "t.csv", "t.jsonl", "t.xls"])
@pytest.mark.parametrize("kind", ["huggingface_dat_repo", "jsonl_dataset_file"])
def test_a_spreadsheet_is_named_with_what_to_do(tmp_path: Path, name: str, kind: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as packed:
        packed.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(UserError) as refused:
        tasks_of(tmp_path / name, kind)
    assert "spreadsheet" in refused.value.what and "dataset_path: t.csv" in refused.value.do


@pytest.mark.parametrize(
    ("text", "line"),
    [("question,answer\nWhat, then?,4\n", 2), ("question,answer\n1?,1\n\nWhat, then?,4\n", 4)],
)
def test_a_row_of_more_cells_is_named(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError) as refused:
        tasks_of(tmp_path / "t.csv")
    assert refused.value.where.endswith(f"t.csv:{line}")


def test_separators_at_line_ends_shift_no_cell(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question;answer\n1?;1;\n2?;2;\n")
    assert [(task.main_query, task.metadata["answer"]) for task in tasks_of(tmp_path / "t.csv")] == [
        ("1?", "1"),
        ("2?", "2"),
    ]


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question,answer,question\n1?,1,2?\n")
    with pytest.raises(UserError) as refused:
        tasks_of(tmp_path / "t.csv")
    assert "have the name question" in refused.value.what and refused.value.where.endswith("t.csv:1")


def test_one_column_has_no_separator(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question\nsemicolons; here\nand |bars|\n")
    assert [task.main_query for task in tasks_of(tmp_path / "t.csv")] == ["semicolons; here", "and |bars|"]


CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8).map(str.strip)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([",", ";", "\t", "|"]),
    st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_whatever_is_written_by_csv_is_recognised(
    tmp_path_factory: pytest.TempPathFactory, separator: str, rows: list[list[str]], encoding: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(written(separator, [["question", "answer", "level"], *rows]).encode(encoding))
    found = find_csv_format(file, ",")
    assert (found.separator, found.columns) == (separator, ("question", "answer", "level"))


def test_long_cells_are_looked_at_in_part(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(written(";", [["question", "answer"], *([["x, y; " * 30_000, "1"]] * 8)]))
    assert len(tasks_of(tmp_path / "t.csv")) == 8
