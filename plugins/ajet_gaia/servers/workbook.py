"""Excel workbooks opened from the working folder, changed, and written back completely.

Invariants: a workbook is opened only if its unpacked size is within bounds. A range with too many cells is refused
before iteration.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .documents import MAX_FILE, checked_archive
from .tool import ToolError
from .tool_server import ToolServer

MAX_CELLS = 200_000
"""Maximum cells of one range."""
Box = tuple[int, int, int, int]
"""First column, first row, last column, last row, counted from 1."""


class WorkbookServer(ToolServer):
    """Server for the Excel files of a working folder."""

    def _create_workbook(self, path: str) -> Any:
        """Write a new, empty workbook to a new file and return the workbook."""
        from openpyxl import Workbook

        workbook = Workbook()
        self.folder.write(path, _save_bytes(workbook), new=True)
        return workbook

    def _open_workbook(self, path: str, *, values: bool = False) -> Any:
        """Open a workbook for reading; `values` reads the last results of formulas instead of the formulas."""
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException

        data = checked_archive(self.folder.read_bytes(path, MAX_FILE))
        try:
            return load_workbook(data, data_only=values, keep_links=False)
        except (InvalidFileException, KeyError, ValueError, TypeError) as error:
            raise ToolError(f"{path} is no readable workbook: {error}") from None

    @contextmanager
    def _change_workbook(self, path: str) -> Iterator[Any]:
        """Yield a workbook for changes, and write it back to its file unless the block fails."""
        workbook = self._open_workbook(path)
        yield workbook
        self.folder.write(path, _save_bytes(workbook))

    def _open_sheet(self, path: str, name: str, *, values: bool = False) -> Any:
        """Open a worksheet for reading."""
        return sheet_of(self._open_workbook(path, values=values), name)

    @contextmanager
    def _change_sheet(self, path: str, name: str) -> Iterator[Any]:
        """Yield a worksheet for changes, and write its workbook back unless the block fails."""
        with self._change_workbook(path) as workbook:
            yield sheet_of(workbook, name)


def sheet_of(workbook: Any, name: str) -> Any:
    """Return a worksheet by its name. Raises ToolError if the workbook has none."""
    if name not in workbook.sheetnames:
        raise ToolError(f"there is no sheet {name}; there are: {', '.join(workbook.sheetnames)}")
    return workbook[name]


def box(start: str, end: str = "") -> Box:
    """Return the borders of a range of cells (first column, first row, last column, last row), counted from 1.

    Args:
        start: first cell, or the complete range such as A1:C3.
        end: last cell; "" if `start` is complete or a single cell.

    Raises:
        ToolError: the range is invalid, or has more than MAX_CELLS cells.
    """
    from openpyxl.utils.cell import range_boundaries

    text = f"{start}:{end}" if end else start
    try:
        borders = range_boundaries(text.replace("$", "").upper())
    except (ValueError, TypeError):
        raise ToolError(f"{text} is no range; A1:C3 is one") from None
    if any(border is None for border in borders):
        raise ToolError(f"{text} has no first and last cell")
    left, top, right, bottom = borders
    if not (1 <= left <= right <= 16_384 and 1 <= top <= bottom <= 1_048_576):
        raise ToolError(
            f"invalid range {text}: its start comes after its end, or it exceeds the sheet; A1:C10 is a valid range"
        )
    if (right - left + 1) * (bottom - top + 1) > MAX_CELLS:
        raise ToolError(f"{text} has more than {MAX_CELLS} cells")
    return left, top, right, bottom


def cells(sheet: Any, borders: Box) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of a range, one tuple per row."""
    left, top, right, bottom = borders
    rows: Iterator[tuple[Any, ...]] = sheet.iter_rows(min_col=left, min_row=top, max_col=right, max_row=bottom)
    return rows


def coordinates(borders: Box) -> str:
    """Return a range of cells in Excel's notation, such as A1:C3."""
    from openpyxl.utils import get_column_letter

    left, top, right, bottom = borders
    return f"{get_column_letter(left)}{top}:{get_column_letter(right)}{bottom}"


def _save_bytes(workbook: Any) -> bytes:
    """Return the content of an Excel file for a workbook."""
    buffer = io.BytesIO()
    workbook.save(buffer)
    return buffer.getvalue()
