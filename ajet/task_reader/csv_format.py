"""Detects the format of a CSV file: encoding, separator, columns.

Invariant: a file is read only if the format is certain. Encodings come from a byte order mark, separators from the cell
counts of the first rows; spreadsheet files are refused by name.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ajet.schema.errors import TaskError
from ajet.schema.text_files import read_marked_encoding, read_text
from ajet.task_reader.column_names import trim_name

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
SAMPLE = 50
"""Number of rows to inspect."""
LOOKED_AT = 1_000_000
"""Number of characters of the file from which the format is guessed."""
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
_PACKED = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""First bytes of the files of spreadsheet programs, newer and older."""


@dataclass(frozen=True)
class CsvFormat:
    """Encoding (Python's name), separator and column names of a CSV file."""

    encoding: str
    separator: str
    columns: tuple[str, ...]


def require_no_spreadsheet(file: Path) -> None:
    """Raise TaskError for a file of a spreadsheet program."""
    with file.open("rb") as stream:
        packed = stream.read(4).startswith(_PACKED)
    if packed or file.suffix.lower() in _SPREADSHEETS:
        kind = file.suffix.lower() if file.suffix.lower() in _SPREADSHEETS else ".xlsx or .xls"
        raise TaskError(
            f"{file.name} is a spreadsheet ({kind}), which ajet cannot read.",
            where=str(file),
            expected=".csv, .tsv, .json, .jsonl or .parquet",
            do='save it as "CSV UTF-8" in the spreadsheet program; the task reader for that file is '
            "task_reader: {type: huggingface_dat_repo, huggingface_dat_repo: {dataset_path: "
            f"{file.stem}.csv}}}}",
        )


def find_csv_format(file: Path, default_separator: str) -> CsvFormat:
    """Return encoding, separator and column names of a CSV file.

    Args:
        default_separator: The usual separator for the file's suffix: a comma for .csv, a tab for .tsv.

    Raises:
        UserError: the file is a spreadsheet, two columns have the same name, or a row has more cells than columns.
    """
    require_no_spreadsheet(file)
    text = read_text(file)
    separator = _find_separator(text, default_separator)
    (line, header), *rows = _first_rows(text, separator) or [(1, [])]
    column_names = [trim_name(name) for name in header]
    duplicate_names = sorted({name for name in column_names if name and column_names.count(name) > 1})
    if duplicate_names:
        raise TaskError(
            f"Two columns of {file.name} have the name {duplicate_names[0]}.",
            where=f"{file}:{line}",
            expected="a separate name for each column",
            do="rename one of the columns",
        )
    for line, row in rows:
        if any(row[len(column_names) :]):
            raise TaskError(
                f"A row of {file.name} has {len(row)} cells, but the first line names {len(column_names)} columns.",
                where=f"{file}:{line}",
                expected=f"cells separated by {SEPARATORS[separator]}",
                do='put double quotes ("…") around a text that contains the separator',
            )
    return CsvFormat(read_marked_encoding(file), separator, tuple(column_names))


def _find_separator(text: str, default_separator: str) -> str:
    """Return the usual separator, unless only another one divides the first rows into equally many cells."""
    if _is_regular(text, default_separator):
        return default_separator
    regular_separators = [
        separator for separator in SEPARATORS if separator != default_separator and _is_regular(text, separator)
    ]
    return regular_separators[0] if len(regular_separators) == 1 else default_separator


def _is_regular(text: str, separator: str) -> bool:
    """Return True if a separator divides the header into several cells, and no row into more."""
    rows = [row for _, row in _first_rows(text, separator)]
    return bool(rows) and all(len(row) > 1 and not any(row[len(rows[0]) :]) for row in rows)


def _first_rows(text: str, separator: str) -> list[tuple[int, list[str]]]:
    """Return the first non-empty rows with their last line numbers, up to a row unreadable by csv."""
    rows = csv.reader(io.StringIO(text[:LOOKED_AT], newline=""), delimiter=separator)
    first_rows: list[tuple[int, list[str]]] = []
    try:
        first_rows += islice(((rows.line_num, row) for row in rows if any(row)), SAMPLE)
    except csv.Error:  # a cell of more than 131,072 letters, which pandas reads
        return first_rows
    # If the text was cut, its last row may be incomplete.
    return first_rows[:-1] if len(text) > LOOKED_AT and len(first_rows) < SAMPLE else first_rows
