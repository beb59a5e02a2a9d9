"""Tasks as a Python program holds them, as rows of JSON.

Invariant: what iterates is not thereby a list of tasks. A table gives its rows; an object whose elements are names of
columns, lines or letters is refused by name, with what to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader.plain_values import BadRow, to_plain
from ajet.task_reader.rows import row_of

ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".xlsx", ".xls", ".ods")
LONGEST_PATH = 255
"""Letters."""
EXPECTED = "a list or generator of ajet.Task, of questions or of dicts; a DataFrame, a datasets.Dataset; a path"


def rows_of_objects(tasks: Any, name: str) -> list[dict[str, Any]]:
    """Return the rows of tasks that were given as objects. `name`: of the argument. Raises TaskError."""
    rows = [_row_of(task, f"{name}[{index}]") for index, task in enumerate(_elements(tasks, name))]
    if not rows:
        raise TaskError("There is no task: the list is empty.", where=name, expected="one at least")
    return rows


def rows_of_table(path: str | Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a CSV, TSV or Parquet file. Raises UserError, MissingExtra."""
    from ajet.task_reader.hugging_face import load_rows, locate

    return rows_of_objects(load_rows(locate(str(path), None, Path.cwd()), "train"), name)


def require_no_question(text: str, name: str) -> None:
    """Raise TaskError for a text that is a question, and no path, data set or reference."""
    is_sentence = len(text.split()) > 1 and ("/" not in text or text.rstrip().endswith(("?", ".", "!", ":")))
    if is_sentence and "->" not in text and not text.lower().endswith(ENDINGS) and not _exists(text):
        raise TaskError(
            f"{name} is one text, {text[:80]!r}, and there is no file of that name.",
            where=name,
            expected=EXPECTED,
            do=f"write a question as a list: {name}=[{text[:40]!r}]",
        )


def _exists(text: str) -> bool:
    return len(text) <= LONGEST_PATH and Path(text).exists()


def _elements(tasks: Any, name: str) -> Iterable[Any]:
    """Return the elements that are tasks. Raises TaskError for an object that has none."""
    kind = type(tasks).__name__
    if hasattr(tasks, "notna") and hasattr(tasks, "columns"):  # pandas: an empty cell is NaN, which JSON has not
        if not tasks.columns.is_unique:
            raise _refuse("DataFrame with two columns of one name", name, "rename one")
        return tasks.astype(object).where(tasks.notna(), None).to_dict("records")
    for method in ("to_dicts", "to_pylist"):  # polars, pyarrow
        if callable(getattr(tasks, method, None)):
            return getattr(tasks, method)()
    if isinstance(tasks, Mapping):
        raise _refuse_mapping(tasks, name)
    if hasattr(tasks, "features") and hasattr(tasks, "column_names"):
        return _rows_of_dataset(tasks)
    if hasattr(tasks, "read") or isinstance(tasks, bytes):
        raise _refuse(kind, name, f'name the file: {name}="train.jsonl"')
    if isinstance(tasks, Set):
        raise _refuse(kind, name, f"give it an order, which every start repeats: {name}=sorted(…)")
    if not isinstance(tasks, Iterable):
        raise _refuse(kind, name, f"write {name}=[…]")
    return tasks


def _rows_of_dataset(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a `datasets.Dataset` or an `IterableDataset`, images as URLs."""
    from ajet.task_reader.image_columns import ImageColumns

    if not hasattr(dataset, "select_columns") or not hasattr(dataset, "__len__"):
        yield from dataset
        return
    images = ImageColumns(dataset.features)
    yield from map(images.urls, images.rows(dataset.with_format(None)))


def _refuse_mapping(tasks: Mapping[Any, Any], name: str) -> TaskError:
    """Return the error for a mapping: splits by name, columns by name, or one row."""
    kind = type(tasks).__name__
    names = ", ".join(map(str, tasks))[:80]
    first = next(iter(tasks), "train")
    if any(hasattr(value, "column_names") or hasattr(value, "columns") for value in tasks.values()):
        return _refuse(f"{kind} of {names}", name, f"name one split of it: {name}=data[{first!r}]")
    if tasks and all(isinstance(value, list | tuple) for value in tasks.values()):
        rows = f"{name}=[dict(zip(data, row)) for row in zip(*data.values())]"
        return _refuse(f"{kind} of columns ({names})", name, f"write its rows: {rows}")
    return _refuse(f"{kind} of {names}", name, f"one row is a list of one: {name}=[row]")


def _refuse(kind: str, name: str, do: str) -> TaskError:
    return TaskError(f"{name} is a {kind}, and no tasks.", where=name, expected=EXPECTED, do=do)


def _row_of(task: Any, place: str) -> dict[str, Any]:
    if isinstance(task, str):
        return {"main_query": str(task)}
    row = row_of(task) if isinstance(task, Task) else task
    try:
        if not isinstance(row, Mapping):
            raise BadRow(f"it is a {type(task).__name__}")
        plain: dict[str, Any] = to_plain({"" if key is None else key: value for key, value in row.items()})
    except (BadRow, RecursionError) as problem:
        raise TaskError(
            f"A task cannot be written down: {problem or 'it is nested too deeply'}.",
            where=place,
            expected="an ajet.Task, a question, or a dict with a question, of texts, numbers, lists and dicts",
        ) from None
    return plain
