"""Excel workbooks as values: opened from the working folder, changed, written back whole.

Invariant: a workbook is opened only if it unpacks within bounds, and a range is refused before it is walked if it has
too many cells.
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
"""Of one range."""
Box = tuple[int, int, int, int]
"""First column, first row, last column, last row, from 1 on."""


class WorkbookServer(ToolServer):
    """A server over Excel files of a working folder."""

    def _create_workbook(self, path: str) -> Any:
        """A new, empty workbook, written where there was none."""
        from openpyxl import Workbook

        workbook = Workbook()
        self.folder.write(path, _save_bytes(workbook), new=True)
        return workbook

    def _open_workbook(self, path: str, *, values: bool = False) -> Any:
        """A workbook to read; `values`: what formulas last gave, not the formulas."""
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException

        data = checked_archive(self.folder.read_bytes(path, MAX_FILE))
        try:
            return load_workbook(data, data_only=values, keep_links=False)
        except (InvalidFileException, KeyError, ValueError, TypeError) as error:
            raise ToolError(f"{path} is no readable workbook: {error}") from None

    @contextmanager
    def _change_workbook(self, path: str) -> Iterator[Any]:
        """A workbook that is written back unless the change failed."""
        workbook = self._open_workbook(path)
        yield workbook
        self.folder.write(path, _save_bytes(workbook))

    def _open_sheet(self, path: str, name: str, *, values: bool = False) -> Any:
        """A worksheet to read."""
        return sheet_of(self._open_workbook(path, values=values), name)

    @contextmanager
    def _change_sheet(self, path: str, name: str) -> Iterator[Any]:
        """A worksheet whose workbook is written back unless the change failed."""
        with self._change_workbook(path) as workbook:
            yield sheet_of(workbook, name)


def sheet_of(workbook: Any, name: str) -> Any:
    """A worksheet by its name."""
    if name not in workbook.sheetnames:
        raise ToolError(f"there is no sheet {name}; there are: {', '.join(workbook.sheetnames)}")
    return workbook[name]


def box(start: str, end: str = "") -> Box:
    """A range's borders; `start` may hold both cells (A1:C3)."""
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
        raise ToolError(f"{text} begins behind its end, or lies outside of a sheet")
    if (right - left + 1) * (bottom - top + 1) > MAX_CELLS:
        raise ToolError(f"{text} has more than {MAX_CELLS} cells")
    return left, top, right, bottom


def cells(sheet: Any, borders: Box) -> Iterator[tuple[Any, ...]]:
    """Cells of a range, row by row."""
    left, top, right, bottom = borders
    rows: Iterator[tuple[Any, ...]] = sheet.iter_rows(min_col=left, min_row=top, max_col=right, max_row=bottom)
    return rows


def coordinates(borders: Box) -> str:
    """A range as Excel writes it."""
    from openpyxl.utils import get_column_letter

    left, top, right, bottom = borders
    return f"{get_column_letter(left)}{top}:{get_column_letter(right)}{bottom}"


def _save_bytes(workbook: Any) -> bytes:
    buffer = io.BytesIO()
    workbook.save(buffer)
    return buffer.getvalue()
