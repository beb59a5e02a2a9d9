"""Reads GSM8K, MATH, GAIA and HotpotQA as published.

Invariant: a row must have the published shape; other rows are errors with a location. A row without an answer is a
valid task without a score. The row is the task's metadata; `metadata.answer` is the bare answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from loguru import logger

from ajet.schema.errors import TaskError
from ajet.schema.task import Task, find_non_finite
from ajet.task_reader.benchmark_files import find_split_files, read_rows
from ajet.task_reader.column_names import RowColumns
from ajet.task_reader.contract import TaskSplit
from ajet.task_reader.plain_values import BadRowError, check_json

if TYPE_CHECKING:
    from ajet.config import Experiment


class BenchmarkReader:
    """Reads one benchmark; subclasses define `build_task`."""

    judge = None
    section: ClassVar[str]
    """Section of `task_reader` with the file paths."""
    shape: ClassVar[str]
    """An example of a row, for errors."""
    columns: ClassVar[tuple[str, ...]]  # columns read by `build_task`

    def __init__(self, experiment: Experiment) -> None:
        reader = experiment.ajet.task_reader
        self._base, self._skips_bad_rows = experiment.base, reader.on_bad_row == "skip"
        files = getattr(reader, self.section)
        self._path_of_split = {"train": files.training.file_path, "validation": files.validation.file_path}

    def has(self, split: TaskSplit) -> bool:
        """Return True if a file or folder is set for the split."""
        return bool(self._path_of_split[split])

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return every row of the split's files as a task.

        Raises:
            TaskError: no file is set, a file cannot be read, or a row has another form and bad rows are not skipped.
        """
        key = f"ajet.task_reader.{self.section}.{'training' if split == 'train' else split}.file_path"
        path = self._path_of_split[split]
        if not path:
            raise TaskError(f"No file is set for the {split} tasks.", where=key, do=f"set {key}")
        tasks: list[Task] = []
        bad_rows: list[tuple[str, str]] = []
        for file in find_split_files(path, self._base, key=key):
            for location, row in read_rows(file):
                try:
                    if isinstance(row, BadRowError):
                        raise row
                    check_json(row)
                    tasks.append(self.build_task(RowColumns(row).rename(self.columns), file))
                except BadRowError as error:
                    if not self._skips_bad_rows:
                        raise TaskError(
                            f"A row does not have the form of {self.section}: {error}.",
                            where=location, expected=self.shape,
                            do="correct the row, or set ajet.task_reader.on_bad_row=skip to leave such rows out",
                        ) from None  # fmt: skip
                    bad_rows.append((location, str(error)))
        if bad_rows:
            total = len(bad_rows) + len(tasks)
            logger.warning(
                "{}: ajet left out {} of {} rows; the first, {}: {}", path, len(bad_rows), total, *bad_rows[0]
            )
        if not tasks:
            raise TaskError("The file contains no task.", where=f"{key}: {path}", expected=self.shape)
        return tasks

    def build_task(self, row: Mapping[str, Any], file: Path) -> Task:
        """Return the task of a row of a file. Raises BadRowError for a row of another form."""
        raise NotImplementedError


class Gsm8kReader(BenchmarkReader):
    """`gsm8k`: the answer is the text after ####."""

    section = "gsm8k"
    columns = ("question", "answer")
    shape = '{"question": "…", "answer": "… #### 42"}'

    def build_task(self, row: Mapping[str, Any], file: Path) -> Task:
        """Return the task of a row; the reference is the number after #### without commas.

        The worked solution becomes `metadata["solution"]`. Raises BadRowError.
        """
        solution = _read_text_field(row, "answer", optional=True)
        if solution and "####" not in solution:
            raise BadRowError("its answer contains no ####, which must precede the number")
        answer = solution.rpartition("####")[2].strip().replace(",", "") if solution else None
        return _make_task(row, _read_text_field(row, "question"), answer, {"solution": solution} if solution else {})


class MathReader(BenchmarkReader):
    r"""`math`: the answer is in the last \boxed{} of the solution, or in a field of its own, as in MATH-500."""

    section = "math"
    columns = ("problem", "solution", "answer", "type", "subject", "level", "unique_id")
    shape = r'{"problem": "…", "level": "Level 3", "type": "Algebra", "solution": "… \\boxed{42} …"}'

    def build_task(self, row: Mapping[str, Any], file: Path) -> Task:
        """Return the task of a row; the reference is the field `answer`, else the last box of the solution.

        Subject and level become tags. Raises BadRowError.
        """
        solution = _read_text_field(row, "solution", optional=True)
        answer = _read_text_field(row, "answer", optional=True) or (find_boxed(solution) if solution else None)
        if solution and answer is None:
            raise BadRowError("its solution contains no \\boxed{}")
        subject_and_level = [row.get("type") or row.get("subject"), row.get("level")]
        extra_metadata: dict[str, Any] = {
            "tags": [f"Level {tag}" if isinstance(tag, int) else str(tag) for tag in subject_and_level if tag]
        }
        # A file of one row, as in the original data set, gives the task its id: train/algebra/1.
        is_single_row = file.suffix == ".json" and not row.get("unique_id")
        task_id = "/".join(file.with_suffix("").parts[-3:]) if is_single_row else row.get("unique_id")
        return _make_task(row, _read_text_field(row, "problem"), answer, extra_metadata, task_id)


class GaiaReader(BenchmarkReader):
    """`gaia`: the question names the task's file at its path in the environment."""

    section = "gaia"
    columns = ("task_id", "Question", "Level", "Final answer", "file_name")
    shape = '{"task_id": "…", "Question": "…", "Level": 1, "Final answer": "…", "file_name": ""}'

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._files_at = experiment.ajet.task_reader.gaia.files_at

    def build_task(self, row: Mapping[str, Any], file: Path) -> Task:
        """Return the task of a row. If the task has a file, the question ends with the file's path.

        The path is in `gaia.files_at` if set, else in the folder of the task file. Raises BadRowError.
        """
        question, answer = _read_text_field(row, "Question"), _read_text_field(row, "Final answer", optional=True)
        extra_metadata: dict[str, Any] = {
            "data_source": "gaia",
            "tags": [f"Level {row['Level']}"] if row.get("Level") else [],
        }
        if file_name := _read_text_field(row, "file_name", optional=True):
            if self._files_at is None and not (file.parent / file_name).is_file():
                raise BadRowError(
                    f"its file {file_name} is not in the folder of the task file; if the environment has the files "
                    "elsewhere, set gaia.files_at"
                )
            file_path = (
                file.parent.absolute() / file_name
                if self._files_at is None
                else PurePosixPath(self._files_at) / file_name
            )
            extra_metadata["file_path"] = str(file_path)
            question += f"\n\nThe file that belongs to this task: {file_path}"
        # The published test split has "?" in place of the answers.
        return _make_task(
            row, question, None if answer == "?" else answer, extra_metadata, _read_text_field(row, "task_id")
        )


class HotpotQaReader(BenchmarkReader):
    """`hotpotqa`: the question, optionally with its paragraphs."""

    section = "hotpotqa"
    columns = ("_id", "id", "question", "answer", "context", "type", "level")
    shape = '{"_id": "…", "question": "…", "answer": "…", "supporting_facts": […], "type": "bridge", "context": […]}'

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._context = experiment.ajet.task_reader.hotpotqa.context

    def build_task(self, row: Mapping[str, Any], file: Path) -> Task:
        """Return the task of a row. With `hotpotqa.context` the paragraphs precede the question. Raises BadRowError."""
        question = _read_text_field(row, "question")
        paragraphs = _parse_paragraphs(row.get("context")) if self._context else []
        if self._context and not paragraphs:
            raise BadRowError("it has no context, which hotpotqa.context requires")
        if paragraphs:
            context = "\n\n".join(f"{title}\n{''.join(sentences).strip()}" for title, sentences in paragraphs)
            question = f"{context}\n\nQuestion: {question}"
        columns = {name: value for name, value in row.items() if name != "context"}
        task_id = _read_text_field(row, "_id", optional=True) or _read_text_field(row, "id", optional=True)
        tags = [str(label) for label in (row.get("type"), row.get("level")) if label]
        return _make_task(columns, question, _read_text_field(row, "answer", optional=True), {"tags": tags}, task_id)


def find_boxed(solution: str) -> str | None:
    """Return the content of the last \\boxed{} or \\fbox{}, whose braces may nest; None without one.

    The form without braces, `\\boxed 42`, gives the text up to the end of the formula.
    """
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    if start < 0:
        return None
    box = solution[start:].partition("boxed" if solution[start + 1] == "b" else "fbox")[2]
    if not box.lstrip().startswith("{"):
        return box.partition("$")[0].strip() or None
    box, depth = box.lstrip(), 0
    for index, character in enumerate(box):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return box[1:index].strip() or None
    return None


def _parse_paragraphs(context: Any) -> list[tuple[str, list[str]]]:
    """Return the (title, sentences) pairs of HotpotQA's context. Raises BadRowError.

    The authors publish [[title, [sentence, …]], …], the hub has {"title": […], "sentences": [[…]]}.
    """
    try:
        pairs = (
            zip(context["title"], context["sentences"], strict=True) if isinstance(context, Mapping) else context or ()
        )
        return [(str(title), [str(sentence) for sentence in sentences]) for title, sentences in pairs]
    except (KeyError, TypeError, ValueError):
        raise BadRowError("its context is not a list of [title, sentences]") from None


def _make_task(
    row: Mapping[str, Any], question: str, answer: str | None, extra_metadata: Mapping[str, Any], task_id: Any = None
) -> Task:
    """Build a task whose metadata are the row's columns, `more` and the reference answer, if any.

    Args:
        extra_metadata: Metadata that the row does not have.
        task_id: None: an id is assigned later.

    Raises:
        BadRowError: a number of the row is not finite.
    """
    if (non_finite := find_non_finite(row)) is not None:
        raise BadRowError(f"{non_finite[0]} is {non_finite[1]}, expected a finite number")
    columns = {name: value for name, value in row.items() if name != "answer"}
    metadata = {**columns, **extra_metadata, **({"answer": answer} if answer else {})}
    return Task(main_query=question, task_id=str(task_id or ""), metadata=metadata)


def _read_text_field(row: Mapping[str, Any], name: str, *, optional: bool = False) -> str:
    """Return a row's text field; "" for a missing optional one.

    Raises:
        BadRowError: the field is missing, empty or no text.
    """
    value = row.get(name)
    if value is None and optional:
        return ""
    if value is None:
        present = ", ".join(map(str, row)) or "nothing"
        raise BadRowError(f"it has no {name}; its keys are {present[:200]}")
    if not isinstance(value, str):
        raise BadRowError(f"its {name} is {type(value).__name__}, expected text")
    if not value.strip() and not optional:
        raise BadRowError(f"its {name} is empty")
    return value
