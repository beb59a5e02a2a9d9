"""Reads benchmark rows from a local copy: JSON Lines, a JSON array, Parquet, or a folder of files.

Invariant: each row has a location (line, row or file); an invalid file is one TaskError. A folder with several splits
needs a split name: FOLDER/SPLIT.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ajet.schema.errors import MissingExtraError, TaskError
from ajet.schema.text_files import read_text
from ajet.task_reader.contract import find_path, require_place
from ajet.task_reader.jsonl import line_rows
from ajet.task_reader.plain_values import BadRowError, decode_json, to_plain

FORMATS = (".jsonl", ".json", ".parquet")
SPLITS = ("train", "test", "dev", "validation", "valid", "val")
INNER = ("main", "distractor", "fullwiki")
"""Subfolders of published copies around the files of a split."""
METADATA = "metadata"


def find_split_files(path: str, base: Path, *, key: str) -> list[Path]:
    """The files of one split, in order. Raises TaskError."""
    existing = find_path(path, base)
    if existing is None:
        head, _, split = path.rstrip("/").rpartition("/")
        above = find_path(head, base) if head else None
        split_files = _find_named_split(above, split) if above is not None and above.is_dir() else []
        if split_files:
            return split_files
        existing = require_place(path, base, key=key, what="benchmark")
    if existing.is_file():
        return [existing]
    files = _list_data_files(existing)
    names = [
        split for split in SPLITS if (existing / split).is_dir() or any(_is_named_for(file, split) for file in files)
    ]
    if len(names) > 1:
        raise TaskError(f"The folder {path} contains several splits.", where=key, expected=f"one of {', '.join(names)}",
                        do=f"append the split to the folder, as in {path.rstrip('/')}/{names[0]}")  # fmt: skip
    files = files or sorted(each for each in existing.rglob("*.json") if each.is_file())
    if not files:
        raise TaskError(
            f"The folder {path} contains no data file.", where=key, expected=f"files ending in {', '.join(FORMATS)}"
        )
    return files


def _find_named_split(above: Path, split: str) -> list[Path]:
    """Return files named for a split, in a folder or a known subfolder."""
    for folder in (above, *(above / name for name in INNER)):
        if (folder / split).is_dir():
            return find_split_files(str(folder / split), above, key="")
        if folder.is_dir() and (
            split_files := [file for file in _list_data_files(folder) if _is_named_for(file, split)]
        ):
            return split_files
    return []


def _list_data_files(folder: Path) -> list[Path]:
    """Return the files with rows; only the `metadata` file if present.

    GAIA's folder also has the same rows by level, and task files of any kind.
    """
    data_files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in FORMATS)
    complete = sorted(
        (file for file in data_files if file.stem == METADATA), key=lambda file: FORMATS.index(file.suffix)
    )
    return complete[:1] or [file for file in data_files if file.stem.startswith(f"{METADATA}.")] or data_files


def _is_named_for(file: Path, split: str) -> bool:
    return split in file.stem.lower().replace("-", "_").split("_")


def read_rows(file: Path) -> Iterator[tuple[str, dict[str, Any] | BadRowError]]:
    """Yield location and row, or the reason for a bad row. Raises TaskError, MissingExtraError."""
    if file.suffix == ".parquet":
        yield from _read_parquet(file)
    elif file.suffix == ".jsonl":
        yield from ((f"{file}:{number}", row) for number, row in line_rows(file))
    else:
        yield from read_array(file)


def read_array(file: Path) -> Iterator[tuple[str, dict[str, Any] | BadRowError]]:
    """Yield the rows of a JSON array or a single object."""
    text = read_text(file)
    try:
        value = decode_json(text)
    except BadRowError as problem:
        location = str(file) if problem.line is None else f"{file}:{problem.line}"
        raise TaskError(
            f"The file is not valid JSON: {problem}.", where=location, expected="an array of objects"
        ) from None
    several = isinstance(value, list)
    for number, row in enumerate(value if several else [value]):
        location = f"{file}, row {number}" if several else str(file)
        yield (
            location,
            row if isinstance(row, dict) else BadRowError(f"the row is a JSON {type(row).__name__}, not an object"),
        )


def _read_parquet(file: Path) -> Iterator[tuple[str, dict[str, Any] | BadRowError]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "local", needed_for=file.name) from None
    try:
        table = parquet.read_table(file)
    except (ArrowException, OSError) as error:
        raise TaskError(
            f"The file is not a valid Parquet file: {str(error).splitlines()[0]}.", where=str(file)
        ) from error
    for number in range(table.num_rows):
        try:
            yield f"{file}, row {number}", to_plain(table.slice(number, 1).to_pylist()[0])
        except UnicodeDecodeError:
            yield f"{file}, row {number}", BadRowError("text that is not UTF-8")
        except BadRowError as problem:
            yield f"{file}, row {number}", problem
