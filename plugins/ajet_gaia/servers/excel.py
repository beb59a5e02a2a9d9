"""Excel files: data, sheets, formulas, formats, charts.

Invariants: a call changes a workbook completely or not at all. Formulas are written and never computed.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

from pydantic import Field

from .pivot import pivot
from .tool import ToolError
from .workbook import MAX_CELLS, WorkbookServer, box, cells, coordinates, sheet_of

Cell = Annotated[str, Field(description="as B2")]
Value = str | int | float | bool | None
PREVIEW = 100
"""Rows shown by a preview."""


class Excel(WorkbookServer):
    """Workbooks of a working folder, with the tools of excel-mcp-server."""

    def read_data_from_excel(
        self,
        filepath: str,
        sheet_name: str,
        start_cell: Cell = "A1",
        end_cell: Annotated[str, Field(description="empty: to the end of the data")] = "",
        preview_only: bool = False,
    ) -> dict[str, Any]:
        """Values of a range of cells."""
        sheet = self._open_sheet(filepath, sheet_name, values=True)
        left, top, _, _ = box(start_cell)
        right, bottom = max(sheet.max_column, left), max(sheet.max_row, top)
        if end_cell:
            _, _, right, bottom = box(start_cell, end_cell)
        # The range ends before MAX_CELLS cells; rows beyond are reported as left out.
        last_row = min(bottom, top + PREVIEW - 1 if preview_only else bottom, top + MAX_CELLS // (right - left + 1))
        borders = (left, top, right, last_row)
        rows = [[cell.value for cell in row] for row in cells(sheet, borders)]
        return {"sheet": sheet_name, "range": coordinates(borders), "rows": rows, "rows_left_out": bottom - last_row}

    def write_data_to_excel(
        self, filepath: str, sheet_name: str, data: list[list[Value]], start_cell: Cell = "A1"
    ) -> str:
        """Write rows of values, from a cell on."""
        left, top, _, _ = box(start_cell)
        with self._change_sheet(filepath, sheet_name) as sheet:
            for row_offset, row in enumerate(data):
                for column_offset, value in enumerate(row):
                    sheet.cell(top + row_offset, left + column_offset, value)
        return f"{len(data)} rows are written"

    def apply_formula(self, filepath: str, sheet_name: str, cell: Cell, formula: str) -> str:
        """Write a formula into a cell."""
        _check_formula(formula)
        left, top, _, _ = box(cell)
        with self._change_sheet(filepath, sheet_name) as sheet:
            sheet.cell(top, left, f"={formula.lstrip('=')}")
        return f"{cell} is ={formula.lstrip('=')}"

    def validate_formula_syntax(self, filepath: str, sheet_name: str, cell: Cell, formula: str) -> str:
        """Whether a formula's brackets, quotes and references are well formed."""
        self._open_sheet(filepath, sheet_name)
        box(cell)
        _check_formula(formula)
        return "well formed"

    def format_range(
        self,
        filepath: str,
        sheet_name: str,
        start_cell: Cell,
        end_cell: str = "",
        bold: bool = False,
        italic: bool = False,
        underline: bool = False,
        font_size: Annotated[int, Field(ge=0, le=400)] = 0,
        font_color: Annotated[str, Field(description="as FF0000")] = "",
        bg_color: str = "",
        border_style: Annotated[str, Field(description="thin, medium, thick, dashed, double")] = "",
        border_color: str = "",
        number_format: Annotated[str, Field(description="as 0.00%")] = "",
        alignment: Annotated[str, Field(description="left, center, right")] = "",
        wrap_text: bool = False,
        merge_cells: bool = False,
    ) -> str:
        """Fonts, colours, borders and number formats of a range."""
        from openpyxl.styles import Alignment, Border, Font, PatternFill, Side

        borders = box(start_cell, end_cell)
        font = Font(
            bold=bold,
            italic=italic,
            underline="single" if underline else None,
            size=font_size or None,
            color=_check_color(font_color),
        )
        side = Side(style=border_style or None, color=_check_color(border_color))
        with self._change_sheet(filepath, sheet_name) as sheet:
            for row in cells(sheet, borders):
                for cell in row:
                    cell.font = font
                    if bg_color:
                        cell.fill = PatternFill("solid", fgColor=_check_color(bg_color))
                    if border_style:
                        cell.border = Border(left=side, right=side, top=side, bottom=side)
                    if alignment or wrap_text:
                        cell.alignment = Alignment(horizontal=alignment or None, wrap_text=wrap_text)
                    if number_format:
                        cell.number_format = number_format
            if merge_cells:
                sheet.merge_cells(coordinates(borders))
        return f"{coordinates(borders)} is formatted"

    def create_workbook(self, filepath: str) -> str:
        """Make an empty Excel workbook."""
        self._create_workbook(filepath)
        return f"{filepath} is there, with a sheet named Sheet"

    def create_worksheet(self, filepath: str, sheet_name: str) -> str:
        """Add a sheet to a workbook."""
        with self._change_workbook(filepath) as workbook:
            _check_sheet_name(workbook, sheet_name)
            workbook.create_sheet(sheet_name)
        return f"{sheet_name} is there"

    def copy_worksheet(self, filepath: str, source_sheet: str, target_sheet: str) -> str:
        """Copy a sheet within its workbook."""
        with self._change_workbook(filepath) as workbook:
            _check_sheet_name(workbook, target_sheet)
            workbook.copy_worksheet(sheet_of(workbook, source_sheet)).title = target_sheet
        return f"{target_sheet} is there"

    def delete_worksheet(self, filepath: str, sheet_name: str) -> str:
        """Remove a sheet from its workbook."""
        with self._change_sheet(filepath, sheet_name) as sheet:
            if len(sheet.parent.sheetnames) == 1:
                raise ToolError("the last sheet cannot be deleted: a workbook needs at least one")
            sheet.parent.remove(sheet)
        return f"{sheet_name} is gone"

    def rename_worksheet(self, filepath: str, old_name: str, new_name: str) -> str:
        """Give a sheet another name."""
        with self._change_workbook(filepath) as workbook:
            _check_sheet_name(workbook, new_name)
            sheet_of(workbook, old_name).title = new_name
        return f"{old_name} is now {new_name}"

    def get_workbook_metadata(self, filepath: str, include_ranges: bool = False) -> dict[str, Any]:
        """Sheets of a workbook, with their used ranges if requested."""
        workbook = self._open_workbook(filepath)
        metadata: dict[str, Any] = {"file": filepath, "sheets": workbook.sheetnames}
        if include_ranges:
            metadata["ranges"] = {sheet.title: sheet.dimensions for sheet in workbook.worksheets}
        return metadata

    def create_chart(
        self,
        filepath: str,
        sheet_name: str,
        data_range: Annotated[str, Field(description="names in its first row, labels in its first column")],
        chart_type: Literal["line", "bar", "pie", "scatter", "area"],
        target_cell: Cell,
        title: str = "",
        x_axis: str = "",
        y_axis: str = "",
    ) -> str:
        """Draw a chart of a range."""
        from openpyxl import chart as charts

        left, top, right, bottom = box(data_range)
        kinds: dict[str, Any] = {
            "line": charts.LineChart,
            "bar": charts.BarChart,
            "pie": charts.PieChart,
            "scatter": charts.ScatterChart,
            "area": charts.AreaChart,
        }
        with self._change_sheet(filepath, sheet_name) as sheet:
            chart = kinds[chart_type]()
            chart.title = title or None
            if chart_type != "pie":
                chart.x_axis.title, chart.y_axis.title = x_axis or None, y_axis or None
            labels = charts.Reference(sheet, min_col=left, min_row=top + 1, max_row=bottom)
            if chart_type == "scatter":
                for column in range(left + 1, right + 1):
                    values = charts.Reference(sheet, min_col=column, min_row=top, max_row=bottom)
                    chart.series.append(charts.Series(values, labels, title_from_data=True))
            else:
                values = charts.Reference(sheet, min_col=left + 1, min_row=top, max_col=right, max_row=bottom)
                chart.add_data(values, titles_from_data=True)
                chart.set_categories(labels)
            sheet.add_chart(chart, target_cell)
        return f"the chart is at {target_cell}"

    def create_pivot_table(
        self,
        filepath: str,
        sheet_name: str,
        data_range: Annotated[str, Field(description="names of columns in its first row")],
        rows: list[str],
        values: list[str],
        columns: list[str] | None = None,
        agg_func: Literal["mean", "average", "sum", "count", "min", "max"] = "mean",
    ) -> str:
        """A summary of a range by its columns, as values on a sheet of its own."""
        borders = box(data_range)
        with self._change_workbook(filepath) as workbook:
            table = [[cell.value for cell in row] for row in cells(sheet_of(workbook, sheet_name), borders)]
            name = f"{sheet_name[:25]}_pivot"
            _check_sheet_name(workbook, name)
            sheet = workbook.create_sheet(name)
            for row in pivot(table, rows, values, columns or [], agg_func):
                sheet.append(row)
        return f"the summary is on the sheet {name}"

    def create_table(
        self,
        filepath: str,
        sheet_name: str,
        data_range: str,
        table_name: str = "",
        table_style: str = "TableStyleMedium9",
    ) -> str:
        """Make a range an Excel table."""
        from openpyxl.worksheet.table import Table, TableStyleInfo

        borders = box(data_range)
        with self._change_sheet(filepath, sheet_name) as sheet:
            name = table_name or f"Table{sum(len(worksheet.tables) for worksheet in sheet.parent.worksheets) + 1}"
            table = Table(displayName=name, ref=coordinates(borders))
            table.tableStyleInfo = TableStyleInfo(name=table_style, showRowStripes=True)
            sheet.add_table(table)
        return f"{name} is there"

    def merge_cells(self, filepath: str, sheet_name: str, start_cell: Cell, end_cell: Cell) -> str:
        """Merge a range into one cell."""
        borders = box(start_cell, end_cell)
        with self._change_sheet(filepath, sheet_name) as sheet:
            sheet.merge_cells(coordinates(borders))
        return f"{coordinates(borders)} is merged"

    def unmerge_cells(self, filepath: str, sheet_name: str, start_cell: Cell, end_cell: Cell) -> str:
        """Split a merged range of cells."""
        cells_name = coordinates(box(start_cell, end_cell))
        with self._change_sheet(filepath, sheet_name) as sheet:
            if cells_name not in {str(merged) for merged in sheet.merged_cells.ranges}:
                raise ToolError(f"{cells_name} is not merged")
            sheet.unmerge_cells(cells_name)
        return f"{cells_name} is unmerged"

    def get_merged_cells(self, filepath: str, sheet_name: str) -> list[str]:
        """Merged ranges of a sheet, as A1:B2."""
        sheet = self._open_sheet(filepath, sheet_name)
        return [str(merged) for merged in sheet.merged_cells.ranges]

    def copy_range(
        self,
        filepath: str,
        sheet_name: str,
        source_start: Cell,
        source_end: Cell,
        target_start: Cell,
        target_sheet: str = "",
    ) -> str:
        """Copy values and formats of a range to another place."""
        borders = box(source_start, source_end)
        left, top, _, _ = box(target_start)
        with self._change_workbook(filepath) as workbook:
            target = sheet_of(workbook, target_sheet or sheet_name)
            source = [
                [(cell.value, copy.copy(cell._style)) for cell in row]
                for row in cells(sheet_of(workbook, sheet_name), borders)
            ]
            for row_offset, row in enumerate(source):
                for column_offset, (value, style) in enumerate(row):
                    cell = target.cell(top + row_offset, left + column_offset)
                    cell.value, cell._style = value, style
        return f"{coordinates(borders)} is copied"

    def delete_range(
        self,
        filepath: str,
        sheet_name: str,
        start_cell: Cell,
        end_cell: Cell,
        shift_direction: Literal["up", "left"] = "up",
    ) -> str:
        """Remove a range; cells below or to the right move up or left."""
        left, top, right, bottom = borders = box(start_cell, end_cell)
        with self._change_sheet(filepath, sheet_name) as sheet:
            for row in cells(sheet, borders):
                for cell in row:
                    cell.value = None
            if shift_direction == "up" and sheet.max_row > bottom:
                moved_range = coordinates((left, bottom + 1, right, sheet.max_row))
                sheet.move_range(moved_range, rows=top - bottom - 1)
            elif shift_direction == "left" and sheet.max_column > right:
                moved_range = coordinates((right + 1, top, sheet.max_column, bottom))
                sheet.move_range(moved_range, cols=left - right - 1)
        return f"{coordinates(borders)} is removed"

    def validate_excel_range(self, filepath: str, sheet_name: str, start_cell: Cell, end_cell: str = "") -> str:
        """Check a range, and whether its cells hold data."""
        borders = box(start_cell, end_cell)
        sheet = self._open_sheet(filepath, sheet_name)
        filled = borders[0] <= sheet.max_column and borders[1] <= sheet.max_row
        return f"{coordinates(borders)} is a range; data of the sheet: {sheet.dimensions}" + (
            "" if filled else "; the range is empty"
        )

    def get_data_validation_info(self, filepath: str, sheet_name: str) -> list[dict[str, Any]]:
        """Data validation rules of a sheet: which values its cells accept."""
        sheet = self._open_sheet(filepath, sheet_name)
        return [
            {"range": str(rule.sqref), "type": rule.type, "operator": rule.operator, "formula": rule.formula1}
            for rule in sheet.data_validations.dataValidation
        ]

    def insert_rows(
        self, filepath: str, sheet_name: str, start_row: int, count: Annotated[int, Field(ge=1, le=10_000)] = 1
    ) -> str:
        """Insert empty rows before a row."""
        return self._shift_cells(filepath, sheet_name, "insert_rows", start_row, count)

    def insert_columns(
        self, filepath: str, sheet_name: str, start_col: int, count: Annotated[int, Field(ge=1, le=1000)] = 1
    ) -> str:
        """Insert empty columns before a column, counted from 1."""
        return self._shift_cells(filepath, sheet_name, "insert_cols", start_col, count)

    def delete_sheet_rows(
        self, filepath: str, sheet_name: str, start_row: int, count: Annotated[int, Field(ge=1)] = 1
    ) -> str:
        """Remove rows, counted from 1."""
        return self._shift_cells(filepath, sheet_name, "delete_rows", start_row, count)

    def delete_sheet_columns(
        self, filepath: str, sheet_name: str, start_col: int, count: Annotated[int, Field(ge=1)] = 1
    ) -> str:
        """Remove columns, counted from 1."""
        return self._shift_cells(filepath, sheet_name, "delete_cols", start_col, count)

    def _shift_cells(self, filepath: str, sheet_name: str, method: str, start: int, count: int) -> str:
        """Call openpyxl's method that inserts or deletes rows or columns, counted from 1."""
        if start < 1:
            raise ToolError("rows and columns are counted from 1")
        with self._change_sheet(filepath, sheet_name) as sheet:
            getattr(sheet, method)(start, count)
        return "done; formulas keep the cells that they name"


tools = Excel.tools


def _check_sheet_name(workbook: Any, name: str) -> None:
    """Raise ToolError if a sheet has this name already, or if Excel does not accept the name."""
    if name in workbook.sheetnames:
        raise ToolError(f"there is a sheet {name} already")
    if not 0 < len(name) <= 31 or set(name) & set("[]:*?/\\"):
        raise ToolError(f"{name!r} is no name of a sheet: at most 31 characters, none of []:*?/\\")


def _check_color(text: str) -> str | None:
    """Return a colour without its #, or None for an empty text. Raises ToolError unless it is 6 or 8 hex digits."""
    if text and not (len(text.lstrip("#")) in (6, 8) and all(digit in "0123456789abcdefABCDEF#" for digit in text)):
        raise ToolError(f"{text} is no colour; FF0000 is one")
    return text.lstrip("#") or None


def _check_formula(formula: str) -> None:
    """Raise ToolError if a formula is empty, cannot be split into tokens, or leaves a bracket open."""
    from openpyxl.formula import Tokenizer
    from openpyxl.formula.tokenizer import TokenizerError

    try:
        tokens = Tokenizer(f"={formula.lstrip('=')}").items
    except (TokenizerError, IndexError) as error:
        raise ToolError(f"the formula is not well formed: {error}") from None
    unclosed = sum(token.subtype == "OPEN" for token in tokens) - sum(token.subtype == "CLOSE" for token in tokens)
    if unclosed or not tokens:
        raise ToolError("the formula is empty, or a bracket is not closed")
