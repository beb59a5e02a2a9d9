"""Commands in the working folder.

Invariants: a command gets no key of the server's environment, and its processes end with the command. The sandbox of
the server limits the command's access.
"""

from __future__ import annotations

import shutil
from collections import deque
from typing import Annotated, Any

from pydantic import Field

from .process import run
from .settings import Settings
from .tool import Shape, ToolError
from .tool_server import ToolServer

HISTORY = 100


class Terminal(ToolServer):
    """Runs each command in a new shell; the folder persists."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.directory = self.folder.root
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self.shell = shutil.which("bash") or "/bin/sh"

    def execute_command(
        self,
        command: str,
        timeout: Annotated[int, Field(description="seconds", ge=1)] = 30,
        output_format: Shape = "text",
    ) -> str | dict[str, Any]:
        """Run a shell command in the working folder."""
        if "\0" in command:
            raise ToolError("the command contains a zero byte; remove it")
        finished = run(
            [self.shell, "-c", command],
            folder=self.directory,
            timeout=min(float(timeout), self.settings.timeout),
            limit=self.settings.max_bytes // 2,
        )
        self.history.append({"command": command, "exit_code": finished.code, "seconds": round(finished.seconds, 2)})
        if output_format == "json":
            return {
                "exit_code": finished.code,
                "stdout": finished.output,
                "stderr": finished.errors,
                "dropped": finished.dropped,
            }
        output = "\n".join(text.rstrip("\n") for text in (finished.output, finished.errors) if text)
        output = f"```\n{output}\n```" if output_format == "markdown" else output
        notes = [f"[{finished.dropped} more bytes of output were dropped]"] if finished.dropped else []
        if finished.code is None:
            notes.append(f"[ended after {finished.seconds:.0f} s: time limit exceeded]")
        elif finished.code:
            notes.append(f"[exit code {finished.code}]")
        return "\n".join(text_part for text_part in (output, *notes) if text_part) or "[no output]"

    def get_command_history(
        self,
        count: Annotated[int, Field(ge=1, le=HISTORY)] = 10,
        output_format: Shape = "text",
    ) -> str | list[dict[str, Any]]:
        """The last commands and how they ended."""
        last_commands = list(self.history)[-count:]
        if output_format == "json":
            return last_commands
        return (
            "\n".join(
                f"{command_record['command']}  [{command_record['exit_code']}, {command_record['seconds']} s]"
                for command_record in last_commands
            )
            or "[none]"
        )

    def get_terminal_capabilities(self) -> dict[str, Any]:
        """The shell, the working folder, and the limits of a command."""
        seconds, size = self.settings.timeout, self.settings.max_bytes
        return {"shell": self.shell, "folder": str(self.directory), "most_seconds": seconds, "most_bytes": size}


tools = Terminal.tools
