"""A terminal of so many columns, with a command of ajet on it.

Invariant: the command is ended with the block, however that ends.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ajet_process import Forked, Zygote, environment

ESCAPED = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SECONDS = 60.0


class Shown:
    """What was written to the terminal so far, screen after screen."""

    def __init__(self, process: Forked, terminal: int) -> None:
        self.process, self._terminal = process, terminal
        self._said, self._more = "", threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """All of it, with what a terminal obeys."""
        return self._said

    def lines(self, beginning: str) -> list[str]:
        """Those that begin so, without what a terminal obeys."""
        lines = re.split(r"[\r\n]+", ESCAPED.sub("", self._said))
        return [line.rstrip() for line in lines if line.startswith(beginning)]

    def until(self, pattern: str) -> None:
        """Wait until it was written. Raises AssertionError."""
        with self._more:
            there = self._more.wait_for(lambda: re.search(pattern, ESCAPED.sub("", self._said)), SECONDS)
        assert there, self._said

    def code(self) -> int:
        """The exit code, awaited."""
        code = self.process.wait(SECONDS)
        self._reader.join()
        return code

    def _read(self) -> None:
        while True:
            try:
                read = os.read(self._terminal, 1 << 16)
            except OSError:  # how a terminal says that nobody writes to it any more
                return
            with self._more:
                self._said += read.decode(errors="replace")
                self._more.notify_all()


@contextmanager
def screen(*arguments: str, cwd: Path, columns: int) -> Iterator[Shown]:
    """`ajet ARGUMENTS` on a terminal."""
    ours, theirs = os.openpty()
    try:
        wide = environment(COLUMNS=str(columns), LINES="40", TERM="xterm")
        process = Zygote.current().start(arguments, cwd, wide, theirs, session=True)
    finally:
        os.close(theirs)
    shown = Shown(process, ours)
    try:
        yield shown
    finally:
        process.kill()
        shown.code()
        os.close(ours)
