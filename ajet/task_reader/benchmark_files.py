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
from ajet.task_reader.plain_values import BadRowError, build_kind_error, decode_json, to_plain

FORMATS = (".jsonl", ".json", ".parquet")
SPLITS = ("train", "test", "dev", "validation", "valid", "val")
INNER = ("main", "distractor", "fullwiki")
"""Subfolders of published copies around the files of a split."""
METADATA = "metadata"


def find_split_files(path: str, base: Path, *, key: str) -> list[Path]:
    """Return the data files of a path, in order: a file, a folder with one split, or FOLDER/SPLIT.

    FOLDER/SPLIT need not exist: the folder's files named for the split count, too.

    Args:
        key: Configuration key with the path, for errors.

    Raises:
        TaskError: the path does not exist, or its folder has several splits or no data file.
    """
    existing = find_path(path, base)
    if existing is None:
        folder_path, _, split = path.rstrip("/").rpartition("/")
        parent_folder = find_path(folder_path, base) if folder_path else None
        split_files = (
            _find_named_split(parent_folder, split) if parent_folder is not None and parent_folder.is_dir() else []
        )
        if split_files:
            return split_files
        existing = require_place(path, base, key=key, what="benchmark")
    if existing.is_file():
        return [existing]
    files = _list_data_files(existing)
    splits = [
        split for split in SPLITS if (existing / split).is_dir() or any(_is_named_for(file, split) for file in files)
    ]
    if len(splits) > 1:
        raise TaskError(
            f"The folder {path} contains several splits.",
            where=key,
            expected=f"one of {', '.join(splits)}",
            do=f"append the split to the folder, as in {path.rstrip('/')}/{splits[0]}",
        )
    # MATH as published: a file for each row, in a folder for each subject.
    files = files or sorted(json_file for json_file in existing.rglob("*.json") if json_file.is_file())
    if not files:
        raise TaskError(
            f"The folder {path} contains no data file.", where=key, expected=f"files ending in {', '.join(FORMATS)}"
        )
    return files


def _find_named_split(parent_folder: Path, split: str) -> list[Path]:
    """Return the data files of a split in a folder, or in its subfolder `main`, `distractor` or `fullwiki`; else [].

    They are in a subfolder with the split's name, or contain the split in their names.
    """
    for folder in (parent_folder, *(parent_folder / name for name in INNER)):
        if (folder / split).is_dir():
            return find_split_files(str(folder / split), parent_folder, key="")
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
    metadata_files = sorted(
        (file for file in data_files if file.stem == METADATA), key=lambda file: FORMATS.index(file.suffix)
    )
    return metadata_files[:1] or [file for file in data_files if file.stem.startswith(f"{METADATA}.")] or data_files


def _is_named_for(file: Path, split: str) -> bool:
    """Return True if a file's name has the split as one of its words, as `hotpot_dev_v1.json` has dev."""
    return split in file.stem.lower().replace("-", "_").split("_")


def read_rows(file: Path) -> Iterator[tuple[str, dict[str, Any] | BadRowError]]:
    """Yield each row of a data file with its location, or the error of a bad row with its location.

    Raises:
        TaskError: the file is not valid.
        MissingExtraError: a Parquet file needs pyarrow, which is not installed.
    """
    if file.suffix == ".parquet":
        yield from _read_parquet(file)
    elif file.suffix == ".jsonl":
        yield from ((f"{file}:{number}", row) for number, row in line_rows(file))
    else:
        yield from read_array(file)


def read_array(file: Path) -> Iterator[tuple[str, dict[str, Any] | BadRowError]]:
    """Yield location and row of each object in a JSON array, or of a single object; for other values an error.

    Raises:
        TaskError: the file is not valid JSON.
    """
    text = read_text(file)
    try:
        value = decode_json(text)
    except BadRowError as error:
        location = str(file) if error.line is None else f"{file}:{error.line}"
        raise TaskError(
            f"The file is not valid JSON: {error}.", where=location, expected="an array of objects"
        ) from None
    is_array = isinstance(value, list)
    for number, row in enumerate(value if is_array else [value]):
        location = f"{file}, row {number}" if is_array else str(file)
        yield location, row if isinstance(row, dict) else build_kind_error(row)


def _read_parquet(file: Path) -> Iterator[tuple[str, dict[str, Any] | BadRowError]]:
    """Yield location and row of a Parquet file, or location and error of a bad row.

    Raises:
        TaskError: the file is not valid.
        MissingExtraError: pyarrow is not installed.
    """
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
    for row_number in range(table.num_rows):
        try:
            yield f"{file}, row {row_number}", to_plain(table.slice(row_number, 1).to_pylist()[0])
        except UnicodeDecodeError:
            yield f"{file}, row {row_number}", BadRowError("text that is not UTF-8")
        except BadRowError as bad_row:
            yield f"{file}, row {row_number}", bad_row
