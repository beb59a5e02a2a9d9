"""SupervisedProcess: a child process that ends with all its children, whatever ends this process.

Invariant: a supervisor process (`ajet.workflow.keeper`, the keeper) is the child's parent. It ends the child's process
tree when this process is gone, even after a kill. The child's output goes to a log.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.record.files import read_tail
from ajet.schema.errors import UserError
from ajet.workflow import keeper

GRACE_S = 5.0
END_TIMEOUT_S = GRACE_S + 15
"""Seconds between SIGTERM and SIGKILL for a child."""
SHOWN_LINES = 15
"""Last lines of a log shown in an error."""
READ_BYTES = 1 << 16
"""Bytes at the end of a log searched for the last lines."""


class SupervisedProcess:
    """A program that this process starts through a supervisor, which ends it when this process is gone.

    Errors call it a service.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, log: Path) -> None:
        """Args:
        name: Name for messages.
        command: The command line.
        folder: Working folder of the program.
        log: File for its output.
        """
        self.name = name
        self._command = list(command)
        self._folder = folder
        self._log = log
        self.keeper: subprocess.Popen[bytes] | None = None
        self.report: int | None = None
        """Pipe with the keeper's report. None: already read, or no report."""
        self._end_report: dict[str, Any] = {}

    def start(self) -> None:
        """Start the program with this process's environment variables. Raises OSError."""
        self._start_keeper(self._command, str(self._folder), list_variables({}), anew=True)
        self._log_start(self._command)

    def require_running(self) -> None:
        """Raise UserError with the exit code and the last lines of output if the program has ended."""
        if self.is_over():
            raise self._make_error(f"The service {self.name} ended{self._read_end()}.")

    @property
    def started(self) -> bool:
        """True once the program was started, even if it has ended."""
        return self.keeper is not None

    def close(self) -> None:
        """End the program with all its children, and wait for it. Idempotent."""
        if self.keeper is None or self.keeper.stdin is None or self.keeper.stdin.closed:
            return
        with suppress(BrokenPipeError):
            self.keeper.stdin.close()
        try:
            self.keeper.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning(
                "the service {} is still running {:.0f} s after the request to stop", self.name, END_TIMEOUT_S
            )
        else:  # a killed keeper ends before the program does
            if self.report is not None:
                _is_readable(self.report, END_TIMEOUT_S)
        self._read_end()

    def is_over(self) -> bool:
        """Return True if the program and its children have ended.

        The supervisor's report is then ready, or will never come.
        """
        if self.keeper is None or self.keeper.poll() is None:
            return False
        return self.report is None or _is_readable(self.report, 0)

    def has_succeeded(self) -> bool:
        """Return True if the ended program had the exit code 0."""
        self._read_end()
        return self._end_report.get("code") == 0

    def describe_exit(self) -> str:
        """Return how the program ended, as the end of a sentence: " with code 3 (last line of output)"."""
        last_line = next((line.strip() for line in reversed(self.last_lines()) if line.strip()), "")
        return f"{self._read_end()}{f' ({last_line[:200]})' if last_line else ''}"

    def _start_keeper(
        self,
        command: Sequence[str],
        folder: str,
        variables: Mapping[str, str],
        *,
        anew: bool,
        descriptors: Sequence[int] = (),
        user: int | None = None,
    ) -> None:
        """Start the supervisor process, which starts the program.

        Args:
            folder: working folder of the program.
            anew: True to clear the log first.
            descriptors: descriptors that the program inherits.
            user: user id of the program; None for the current user.
        """
        self._log.parent.mkdir(parents=True, exist_ok=True)
        report_fd, keeper_end = os.pipe()
        try:
            if anew:
                self._log.write_bytes(b"")
            with self._log.open("ab") as log:  # append: a truncated log then has no hole
                self.keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper.__file__, str(keeper_end)],
                    stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(keeper_end, *descriptors),
                    start_new_session=True, env=variables, user=user, group=user,
                    extra_groups=None if user is None else [],
                )  # fmt: skip
        except BaseException:
            os.close(report_fd)
            raise
        finally:
            os.close(keeper_end)
        os.set_blocking(report_fd, False)
        self.report = report_fd
        keeper_order: dict[str, Any] = {
            "command": list(command),
            "folder": folder,
            "limits": {},
            "timeout": None,
            "grace": GRACE_S,
            "measured": False,
        }
        assert self.keeper.stdin is not None
        with suppress(BrokenPipeError):  # the keeper's exit gives the reason
            self.keeper.stdin.write(json.dumps(keeper_order).encode() + b"\n")
            self.keeper.stdin.flush()

    def _log_start(self, command: Sequence[str]) -> None:
        """Log the command line of the program."""
        logger.info("starting the service {}: {}", self.name, shlex.join(command))

    def _read_end(self) -> str:
        """Return how the program ended, as the end of a sentence, or "" if it is running or the reason is unknown.

        The supervisor's report is read once.
        """
        if self.report is not None and self.is_over():
            data, report_fd, self.report = (
                b"",
                self.report,
                None,
            )  # read once: the descriptor's number is reused
            with suppress(BlockingIOError):
                data = os.read(report_fd, 1 << 16)
            os.close(report_fd)
            self._end_report = json.loads(data or b'{"code": null}')
        if self._end_report.get("problem"):
            return f": {self._end_report['problem']}"
        return f" with code {self._end_report['code']}" if self._end_report.get("code") is not None else ""

    def last_lines(self) -> list[str]:
        """Return the last lines of the program's output."""
        with self._log.open("rb") as log:
            return read_tail(log, READ_BYTES).decode(errors="replace").splitlines()

    def _make_error(self, what: str, expected: str = "") -> UserError:
        """Return the error for a program that does not work, with the last lines of its output.

        Args:
            what: What happened, as a sentence.
        """
        lines = self.last_lines()[-SHOWN_LINES:]
        log_lines = "".join(f"\n    {line[:300]}" for line in lines)
        return UserError(
            what,
            where=f"ajet.services.{self.name}{log_lines}",
            expected=expected,
            do="run the command by hand in its folder, and read its output",
        )


def list_variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment variables for a child, replaced and extended by `more`.

    This interpreter's folder comes first on the PATH, and a Python program writes its output without a buffer.
    """
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": paths, "PYTHONUNBUFFERED": "1", **more}


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Return True if data or the end of the file comes within `seconds`.

    `poll` is used because `select` refuses descriptors above 1023.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
