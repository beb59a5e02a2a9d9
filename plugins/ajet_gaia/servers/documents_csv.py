"""CSV files as tables.

Invariants: reading stops at the bounds for any line length, and cells are bounded.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from .documents import MAX_FILE, BoundedFile, encoding_of, format_document, format_table
from .tool import FilePath, Format, ToolError
from .tool_server import ToolServer

MAX_CELL = 1_000_000
MAX_LINE = 4_000_000
"""Maximum characters of a line."""
HEAD = 65536
"""Bytes examined for encoding and delimiter."""
BAR = 40
"""Characters of the longest bar of a chart."""


class CsvDocuments(ToolServer):
    """Reads CSV files of a working folder."""

    def extract_csv_content(
        self,
        file_path: FilePath,
        output_format: Format = "markdown",
        max_rows: Annotated[int, Field(ge=1, le=100_000)] = 1000,
        include_statistics: bool = True,
        generate_visualizations: Annotated[bool, Field(description="bars of how often values occur")] = False,
        encoding: Annotated[str, Field(description="of the file; empty: utf-8, else latin-1")] = "",
        delimiter: Annotated[str, Field(description="empty: it is found out")] = "",
    ) -> str:
        """Rows of a CSV or TSV file, with statistics of its columns."""
        with self.folder.read(file_path) as file:
            first_bytes = file.read(HEAD)
            file.seek(0)
            bounded = BoundedFile(file, MAX_FILE)
            text = io.TextIOWrapper(
                io.BufferedReader(bounded),
                encoding_of(first_bytes, encoding, is_complete=len(first_bytes) < HEAD),
                errors="replace",
                newline="",
            )
            rows, has_more_rows = _read_rows(text, delimiter or _find_delimiter(first_bytes), max_rows)
        head, body = (rows[0], rows[1:]) if rows else ([], [])
        facts: dict[str, Any] = {"row_count": len(body), "column_count": len(head)}
        if has_more_rows or bounded.cut:
            facts["note"] = f"only the first {len(body)} rows were read"
        if include_statistics:
            facts["statistics"] = {name: _summarize_column(column) for name, column in _list_columns(head, body)}
        if generate_visualizations:
            facts["bars"] = {name: _draw_bars(column) for name, column in _list_columns(head, body)}
        if output_format == "json":
            return json.dumps({"header": head, "rows": body, **facts}, ensure_ascii=False)
        if output_format == "html":
            return format_table(rows, "html")
        return format_document(format_table(rows, output_format), output_format, facts)

    def list_supported_formats(self) -> list[str]:
        """Kinds of files read by this server."""
        return [".csv", ".tsv", ".txt with delimiters"]


tools = CsvDocuments.tools


def _read_rows(text: io.TextIOWrapper, delimiter: str, limit: int) -> tuple[list[list[str]], bool]:
    """Read the header and at most `limit` rows. Return (rows with the header, True if more rows follow).

    Raises:
        ToolError: the delimiter, a line or a cell cannot be used.
    """
    if len(delimiter) != 1:
        raise ToolError("a delimiter is one character")
    csv.field_size_limit(MAX_CELL)
    rows: list[list[str]] = []
    try:
        for row in csv.reader(_read_lines(text), delimiter=delimiter):
            if len(rows) > limit:
                return rows, True
            rows.append(row)
    except csv.Error as error:
        if "larger than field limit" in str(error):
            raise ToolError(f"line {len(rows) + 1} has a cell of more than {MAX_CELL} characters") from None
        raise ToolError(f"line {len(rows) + 1}: {error}") from None
    return rows, False


def _read_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a file. Raises ToolError for a line longer than MAX_LINE, which could fill memory."""
    line_number = 0
    while line := text.readline(MAX_LINE):
        line_number += 1
        if len(line) == MAX_LINE:
            raise ToolError(f"line {line_number} has more than {MAX_LINE} characters")
        yield line


def _find_delimiter(start: bytes) -> str:
    """Return the most frequent of the usual delimiters in the first line."""
    line = start.split(b"\n", 1)[0].decode("utf-8", "replace")
    return max(",\t;|", key=line.count)


def _list_columns(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Return (name, cells) of the first 100 columns. Rows shorter than the header lack cells."""
    return [(name, [row[index] for row in body if index < len(row)]) for index, name in enumerate(head[:100])]


def _summarize_column(column: Sequence[str]) -> dict[str, Any]:
    """Return statistics of a column, with minimum, mean and so on if all its filled cells are numbers."""
    filled = [cell for cell in column if cell.strip()]
    stats: dict[str, Any] = {"filled": len(filled), "distinct": len(set(filled))}
    numbers = [number for cell in filled if (number := _parse_number(cell)) is not None]
    if filled and len(numbers) == len(filled):
        stats |= {"min": min(numbers), "max": max(numbers), "mean": statistics.fmean(numbers), "sum": sum(numbers)}
        stats["median"] = statistics.median(numbers)
    return stats


def _parse_number(cell: str) -> float | None:
    """Return a cell's number, written with or without commas between thousands; None for other text."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _draw_bars(column: Sequence[str]) -> list[str]:
    """Return the ten most frequent values of a column, each with a bar of its count."""
    most_common = Counter(column).most_common(10)
    return [f"{value[:30]} {'#' * max(1, BAR * count // most_common[0][1])} {count}" for value, count in most_common]
