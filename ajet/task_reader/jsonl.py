"""Reads JSON lines, one task per object.

Invariant: no line is lost silently. A bad line stops the reader with file and line number; with
`task_reader.on_bad_row: skip` bad lines are skipped, counted and logged.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.schema.text_files import format_convert_command, guess_encoding
from ajet.task_reader.contract import TaskSplit, explain_read_errors, find_file
from ajet.task_reader.csv_format import require_no_spreadsheet
from ajet.task_reader.plain_values import build_kind_error, read_json
from ajet.task_reader.rows import BadRowError, ColumnNames, task_of

if TYPE_CHECKING:
    from ajet.config import Experiment

LINES = "JSON Lines in UTF-8: one object per line, without brackets around them or commas between them"
TABLES = (".csv", ".tsv", ".parquet")
"""File types of another reader."""


class JsonlReader:
    """`jsonl_dataset_file`: fields of `Task` by name, or a question/answer style row (then the row is metadata)."""

    judge = None
    section = "jsonl_dataset_file"
    """Section of `task_reader` with the file paths."""

    def __init__(self, experiment: Experiment) -> None:
        """Read the settings; the files are read by `tasks`."""
        reader = experiment.ajet.task_reader
        files = getattr(reader, self.section)
        self._base = experiment.base
        self._files = {
            "train": files.training.file_path,
            "validation": files.validation.file_path,
        }
        self._columns = ColumnNames.of(experiment)
        self._skips_bad_rows = reader.on_bad_row == "skip"
        self.skipped = 0
        """Number of skipped bad rows."""
        self._task_lines: tuple[str, list[int]] = ("", [])
        """Name of the file read last, and the line of each of its tasks."""

    def has(self, split: TaskSplit) -> bool:
        """Return True if a file is set for the split."""
        return bool(self._files[split])

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return every row of the split's file as a task. Raises TaskError for a missing file or a bad row."""
        key = f"ajet.task_reader.{self.section}.{'training' if split == 'train' else split}.file_path"
        path = self._files[split]
        if not path:
            raise TaskError(f"No file is set for the {split} tasks.", where=key, do=f"set {key}")
        return read_tasks(find_file(path, self._base, key=key), self.task_of, skip=self._skips_bad_rows, counter=self)

    def place_of(self, index: int) -> str:
        """Return file name and line number of a task, by its index in the split read last."""
        file_name, line_numbers = self._task_lines
        return f"{file_name}:{line_numbers[index]}"

    def note_lines(self, file: Path, numbers: list[int]) -> None:
        """Store the line number of each task of a file, for error messages."""
        self._task_lines = (file.name, numbers)

    def task_of(self, row: dict[str, Any]) -> Task:
        """Return the task of a row. Raises BadRowError."""
        return task_of(row, self._columns)


def read_tasks(
    file: Path, made: Callable[[dict[str, Any]], Task], *, skip: bool = False, counter: JsonlReader | None = None
) -> list[Task]:
    """Read the tasks of one file of JSON lines.

    Args:
        made: Converts a row to a task; may raise BadRowError.
        skip: True to skip bad lines and log their number.
        counter: Gets the number of skipped lines, and the line number of each task.

    Raises:
        TaskError: a bad line, unless skipped, or a file without tasks.
    """
    tasks: list[Task] = []
    line_numbers: list[int] = []
    bad_lines: list[tuple[int, str]] = []
    for line_number, line in _read_lines(file):
        try:
            tasks.append(made(_parse_row(line)))
            line_numbers.append(line_number)
        except BadRowError as error:
            # The first line decides whether the file is of another format, which no skipping helps.
            if not tasks and not bad_lines and (other_format := _recognize_other_format(file, line)) is not None:
                raise TaskError(
                    f"{other_format[0]}: {error}.", where=f"{file}:{line_number}", expected=LINES, do=other_format[1]
                ) from None
            if not skip and not _is_utf8(line):
                raise _encoding_error(file, line_number, line, f": {error}") from None
            if not skip:
                raise TaskError(
                    f"A row cannot be used as a task: {error}.",
                    where=f"{file}:{line_number}",
                    expected="one JSON object per line, with a question",
                    do=error.do or "correct the line, or set ajet.task_reader.on_bad_row=skip to leave such rows out",
                ) from None
            bad_lines.append((line_number, str(error)))
    if bad_lines:
        total = len(bad_lines) + len(tasks)
        logger.warning(
            "{}: ajet left out {} of {} rows; the first, line {}: {}", file, len(bad_lines), total, *bad_lines[0]
        )
        if counter is not None:
            counter.skipped += len(bad_lines)
    if counter is not None:
        counter.note_lines(file, line_numbers)
    if not tasks:
        reason = f": all {len(bad_lines)} rows were left out, the first because {bad_lines[0][1]}" if bad_lines else ""
        raise TaskError(
            f"The task file contains no task{reason}.", where=str(file), expected="one JSON object per line"
        )
    return tasks


def _recognize_other_format(file: Path, line: bytes) -> tuple[str, str] | None:
    """Return (what the file is, advice) for a file that is not JSON Lines, by its first bad line; else None."""
    if line.lstrip().startswith(b"["):
        conversion = f"convert the file, for example by `jq -c '.[]' {file.name} > {file.stem}.lines.jsonl`"
        return "The task file is a JSON array, or begins like one", conversion
    if file.suffix.lower() in TABLES:
        advice = (
            "to read it, set task_reader: {type: huggingface_dat_repo, huggingface_dat_repo: {dataset_path: "
            f"{file.name}}}}}"
        )
        return f"The task file has the format {file.suffix.lower().lstrip('.')}, not JSON Lines", advice
    return None


def _is_utf8(line: bytes) -> bool:
    """Return True if a line is valid UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encoding_error(file: Path, number: int, line: bytes, why: str = "") -> TaskError:
    """Return the error for a file in another encoding than UTF-8, with the likely encoding and a command to convert it.

    Args:
        number: Number of the line.
        why: Further cause, appended to the message.
    """
    encoding = guess_encoding(line)
    return TaskError(
        f"{file.name} is not UTF-8; it looks like {encoding}{why}.",
        where=f"{file}:{number}",
        expected=LINES,
        do=f"save it as UTF-8 in your editor, or run: {format_convert_command(file, encoding)}",
    )


def line_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | BadRowError]]:
    """Yield each line's number (from 1) with its JSON object, or with the error of a bad line."""
    for number, line in _read_lines(file):
        try:
            yield number, _parse_row(line)
        except BadRowError as error:
            yield number, error


def _read_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number (from 1) and bytes of each line that is not blank, without a byte order mark.

    Raises:
        TaskError: the file cannot be read, or is a spreadsheet or UTF-16.
    """
    with explain_read_errors(file), file.open("rb") as stream:
        require_no_spreadsheet(file)
        for number, line in enumerate(stream, start=1):
            if number == 1:
                is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line
                if is_utf16 and file.suffix.lower() not in TABLES:
                    raise _encoding_error(file, number, line)
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield number, line


def _parse_row(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line. Raises BadRowError."""
    try:
        text = line.decode("utf-8").rstrip()  # without the line break: an error at the end is then in this line
    except UnicodeDecodeError as error:
        raise BadRowError(f"not UTF-8 at byte {error.start + 1} (it looks like {guess_encoding(line)})") from None
    if text.strip() in ("[", "[{"):
        raise BadRowError("it looks like one JSON array, not JSON Lines")
    row = read_json(text)
    if not isinstance(row, dict):
        raise build_kind_error(row)
    return row
