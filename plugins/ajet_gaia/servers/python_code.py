"""Python in the working folder, in place of a hosted sandbox, with interpreters kept between calls.

Invariants: code over its time limit ends its interpreter with all processes of its group, and the next call reports the
lost names. The sandbox of the server limits the code's access.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from pydantic import Field

from .process import environment
from .settings import Settings
from .tool import FilePath, ToolError
from .tool_server import ToolServer

MOST = 8
"""Maximum number of live interpreters; the oldest is closed for a new one."""


class Interpreter:
    """One process that runs code."""

    def __init__(self, folder: Path, limit: int) -> None:
        child_read, self._requests = os.pipe()
        self._answers, child_write = os.pipe()
        program = Path(__file__).with_name("interpreter.py")
        self._process = subprocess.Popen(
            [sys.executable, "-s", str(program), str(child_read), str(child_write), str(limit)],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(child_read, child_write),
            start_new_session=True,
        )
        os.close(child_read)
        os.close(child_write)

    def run(self, code: str, timeout: float, limit: int) -> dict[str, str]:
        """Run code in the process and return {output, error}.

        Args:
            timeout: seconds until the process is ended.
            limit: characters of output; a much longer answer ends the process.

        Raises:
            ToolError: the interpreter was lost, by timeout or by the code.
        """
        end = time.monotonic() + timeout
        with suppress(BrokenPipeError):  # the interpreter has ended; the missing answer is reported below
            _write_all(self._requests, json.dumps(code).encode() + b"\n", end)
        answer_line = bytearray()
        while not answer_line.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._answers, 65536) if ready else b""
            answer_line += data
            if not data or len(answer_line) > 20 * limit:
                self.close()
                raise ToolError(
                    "the interpreter ended; names are lost"
                    if ready
                    else f"ended after the time limit of {timeout:.0f} s; names are lost"
                )
        answer: dict[str, str] = json.loads(answer_line)
        return answer

    def close(self) -> None:
        """End the process with all processes of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._requests, self._answers):
            with suppress(OSError):
                os.close(descriptor)


class PythonCode(ToolServer):
    """Runs code in interpreters selected by id."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.interpreters: dict[str, Interpreter] = {}

    def e2b_upload_file(self, path: FilePath) -> dict[str, str]:
        """A file for the Python sandbox; answers sandbox_id and the path there."""
        self.folder.entry(path)
        relative = self.folder.shown(path)
        return {"sandbox_id": self._open_sandbox(""), "path": str(self.folder.root / relative)}

    def e2b_run_code(
        self,
        sandbox_id: Annotated[
            str, Field(description="of an earlier answer: its names are kept; empty: a new one")
        ] = "",
        code_block: Annotated[str, Field(description="Python; the value of a last expression is shown")] = "",
    ) -> dict[str, Any]:
        """Run Python code in the working folder; answers sandbox_id, output and error."""
        sandbox = self._open_sandbox(sandbox_id)
        try:
            printed = self.interpreters[sandbox].run(code_block, self.settings.timeout, self.settings.max_bytes)
        except ToolError:
            del self.interpreters[sandbox]
            raise
        return {"sandbox_id": sandbox, **{name: text for name, text in printed.items() if text}}

    def _open_sandbox(self, requested: str) -> str:
        """Return the id of a live interpreter: the requested one, or a new one for "".

        Raises:
            ToolError: there is no interpreter with this id.
        """
        if requested in self.interpreters:
            return requested
        if requested:
            raise ToolError(
                f"there is no sandbox {requested[:40]}, or it was ended: leave sandbox_id empty for a new one"
            )
        if len(self.interpreters) == MOST:
            self.interpreters.pop(next(iter(self.interpreters))).close()
        name = uuid4().hex[:8]
        self.interpreters[name] = Interpreter(self.folder.root, self.settings.max_bytes // 3)
        return name


tools = PythonCode.tools


def _write_all(descriptor: int, data: bytes, deadline: float) -> None:
    """Write the data to a pipe until the deadline. A process that does not read cannot block the server."""
    os.set_blocking(descriptor, False)
    remaining = memoryview(data)
    while remaining:
        _, ready, _ = select.select([], [descriptor], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return
        remaining = remaining[os.write(descriptor, remaining) :]
