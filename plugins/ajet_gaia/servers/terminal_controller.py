"""Commands and line edits of files, with a persistent current directory.

Invariants: the current directory is below the working folder. File access goes through `Folder`; commands follow the
rules of `terminal`.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

from pydantic import Field

from .settings import Settings
from .terminal import Terminal
from .tool import FilePath, ToolError
from .tool_server import ToolServer

MAX_TEXT = 10_000_000
Row = Annotated[int, Field(description="line, from 0 on; -1: all, or the end")]


class TerminalController(ToolServer):
    """A terminal, with edits of files by line."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.terminal = Terminal(settings)
        self.below = "."

    def execute_command(self, command: str, timeout: Annotated[int, Field(description="seconds", ge=1)] = 30) -> str:
        """Run a shell command in the current directory."""
        with self.folder.directory(self.below, write=True):
            return str(self.terminal.execute_command(command, timeout))

    def get_command_history(self, count: Annotated[int, Field(ge=1, le=100)] = 10) -> str:
        """The last commands and how they ended."""
        return str(self.terminal.get_command_history(count))

    def get_current_directory(self) -> str:
        """The current directory of commands."""
        return str(self.terminal.directory)

    def change_directory(self, path: str) -> str:
        """Change the current directory, within the working folder."""
        path = os.path.join(self.below, path)
        with self.folder.directory(path, write=True):
            self.below = self.folder.shown(path)
        self.terminal.directory = self.folder.root / self.below
        return str(self.terminal.directory)

    def list_directory(self, path: str = "") -> str:
        """Names in a directory; empty: the current one."""
        entries = self.folder.entries(self._join_path(path))
        return "\n".join(f"{entry.name}/" if entry.kind == "directory" else entry.name for entry in entries)

    def write_file(self, path: FilePath, content: str, mode: str = "overwrite") -> str:
        """Write a file; mode append adds to it."""
        if mode not in ("overwrite", "append"):
            raise ToolError("mode is overwrite or append")
        self.folder.write(self._join_path(path), content.encode("utf-8", "replace"), append=mode == "append")
        return f"{path} is written"

    def read_file(self, path: FilePath, start_row: Row = -1, end_row: Row = -1, as_json: bool = False) -> str:
        """Lines of a text file, from start_row to end_row."""
        lines = self._read_lines(path)
        first_row = max(start_row, 0)
        selected = lines[first_row : end_row + 1 if end_row >= 0 else None]
        if as_json:
            return json.dumps(
                {"total_rows": len(lines), "start_row": first_row, "content": selected}, ensure_ascii=False
            )
        return "\n".join(selected)

    def insert_file_content(self, path: FilePath, content: str, row: Row = -1, rows: list[int] | None = None) -> str:
        """Insert lines before a line, or before each of several."""
        lines = self._read_lines(path)
        # From the last line to the first, so that an insertion does not shift the lines still to come.
        for row_number in sorted(rows if rows is not None else [row], reverse=True):
            index = len(lines) if row_number < 0 else min(row_number, len(lines))
            lines[index:index] = content.splitlines()
        return self._save_lines(path, lines)

    def delete_file_content(
        self, path: FilePath, row: Row = -1, rows: list[int] | None = None, substring: str = ""
    ) -> str:
        """Delete a line, several lines, or a text wherever it stands."""
        if substring:
            return self._save_lines(path, "\n".join(self._read_lines(path)).replace(substring, "").split("\n"))
        removed = set(rows if rows is not None else [row])
        return self._save_lines(
            path, [line for row_number, line in enumerate(self._read_lines(path)) if row_number not in removed]
        )

    def update_file_content(
        self, path: FilePath, content: str, row: Row = -1, rows: list[int] | None = None, substring: str = ""
    ) -> str:
        """Replace a line, several lines, or a text wherever it stands."""
        if substring:
            return self._save_lines(path, "\n".join(self._read_lines(path)).replace(substring, content).split("\n"))
        lines = self._read_lines(path)
        for row_number in rows if rows is not None else [row]:
            if not 0 <= row_number < len(lines):
                raise ToolError(f"the file has no line {row_number}: it has {len(lines)}")
            lines[row_number] = content
        return self._save_lines(path, lines)

    def _join_path(self, path: str) -> str:
        """Return a path relative to the current directory as one relative to the working folder."""
        return os.path.join(self.below, path)

    def _read_lines(self, path: str) -> list[str]:
        """Return the lines of a file; invalid UTF-8 is replaced."""
        return self.folder.read_bytes(self._join_path(path), MAX_TEXT).decode("utf-8", "replace").splitlines()

    def _save_lines(self, path: str, lines: list[str]) -> str:
        """Write the lines to a file, and return how many it has."""
        self.folder.write(self._join_path(path), "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return f"{path} has {len(lines)} lines"


tools = TerminalController.tools
