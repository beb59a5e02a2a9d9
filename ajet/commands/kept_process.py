"""A child process that is ended with all that it started, whatever ends this process.

Invariant: a keeper (`ajet.workflow.keeper`) stands between this process and the child; it ends the child's tree
when this process is gone, a kill included. What the child prints is in its log.
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
"""Seconds between asking a child to end and ending it."""
SHOWN = 15
"""Lines of a log that an error shows."""
READ = 1 << 16
"""Bytes at its end in which they are looked for."""


class KeptProcess:
    """A program that this process starts and ends. Errors call it a service."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, log: Path) -> None:
        self.name, self._command, self._folder, self._log = name, list(command), folder, log
        self._keeper: subprocess.Popen[bytes] | None = None
        self._report: int | None = None
        """Where its keeper reports; None: nothing is to be read."""
        self._ended: dict[str, Any] = {}
        """What it reported."""

    def start(self) -> None:
        """Begin. Raises OSError."""
        self._start_keeper(self._command, str(self._folder), list_variables({}), anew=True)
        self._log_start(self._command)

    def require_running(self) -> None:
        """Raises UserError where it is over."""
        if self.is_over():
            raise self._failure(f"The service {self.name} ended{self._how()}.")

    @property
    def started(self) -> bool:
        """Whether it was started."""
        return self._keeper is not None

    def close(self) -> None:
        """End it with all that it started. Idempotent."""
        if self._keeper is None or self._keeper.stdin is None or self._keeper.stdin.closed:
            return
        with suppress(BrokenPipeError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(GRACE_S + 15)
        except subprocess.TimeoutExpired:
            logger.warning("the service {} does not end", self.name)
        else:  # a keeper that was killed is gone before what it kept is
            if self._report is not None:
                _readable(self._report, GRACE_S + 15)
        self._how()

    def is_over(self) -> bool:
        """Whether what was started has ended, all of it: its keeper's report is then there, or will never be."""
        if self._keeper is None or self._keeper.poll() is None:
            return False
        return self._report is None or _readable(self._report, 0)

    def ended_well(self) -> bool:
        """Whether it had done what it was to do. Of one that is over."""
        self._how()
        return self._ended.get("code") == 0

    def how(self) -> str:
        """The end of one that is over, as a sentence goes on: " with code 3"; and its last line."""
        last = next((line.strip() for line in reversed(self._last_lines()) if line.strip()), "")
        return f"{self._how()}{f' ({last[:200]})' if last else ''}"

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
        """Start a program with its keeper, as `user` if one is given. `anew`: what the log held is removed first."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        report, theirs = os.pipe()
        try:
            if anew:
                self._log.write_bytes(b"")
            with self._log.open("ab") as log:  # so that whoever shortens it does not leave a hole
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper.__file__, str(theirs)],
                    stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(theirs, *descriptors),
                    start_new_session=True, env=variables, user=user, group=user,
                    extra_groups=None if user is None else [],
                )  # fmt: skip
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(report, False)
        self._report = report
        order: dict[str, Any] = {
            "command": list(command),
            "folder": folder,
            "limits": {},
            "timeout": None,
            "grace": GRACE_S,
            "measured": False,
        }
        assert self._keeper.stdin is not None
        with suppress(BrokenPipeError):  # how it ended says why
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()

    def _log_start(self, command: Sequence[str]) -> None:
        logger.info("starting the service {}: {}", self.name, shlex.join(command))

    def _how(self) -> str:
        if self._report is not None and self.is_over():
            said, report, self._report = b"", self._report, None  # read once: another file gets its number
            with suppress(BlockingIOError):
                said = os.read(report, 1 << 16)
            os.close(report)
            self._ended = json.loads(said or b'{"code": null}')
        if self._ended.get("problem"):
            return f": {self._ended['problem']}"
        return f" with code {self._ended['code']}" if self._ended.get("code") is not None else ""

    def _last_lines(self) -> list[str]:
        """The last lines of its log, which may be long by now."""
        with self._log.open("rb") as log:
            return read_tail(log, READ).decode(errors="replace").splitlines()

    def _failure(self, what: str, expected: str = "") -> UserError:
        lines = self._last_lines()[-SHOWN:]
        told = "".join(f"\n    {line[:300]}" for line in lines)
        return UserError(
            what,
            where=f"ajet.services.{self.name}{told}",
            expected=expected,
            do="run its command by hand in its folder, and look at what it prints",
        )


def list_variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment variables as a child gets them, with `more`."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": paths, "PYTHONUNBUFFERED": "1", **more}


def _readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or its end, within that time; the descriptor may be any number, as that of
    one that is started again in a busy run is."""
    asked = select.poll()
    asked.register(descriptor, select.POLLIN)
    return bool(asked.poll(seconds * 1000))
