"""Where log lines go, kept there: loguru has one logger a process, and anybody's `logger.remove()` empties it.

Invariant: a sink of ours stays until we take it away, whatever a library or the person's own file does to the logger
when it is imported; what they add and remove of their own is theirs. Their `logger.remove(0)`, which means the sink
that loguru itself begins with, is no error where we have taken that one away already, and means the one that we gave
back for it where we did.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loguru import logger

FIRST = 0
"""The id of the sink that loguru itself begins with."""
_first = FIRST
"""Its id now: another once it was taken and given back."""
_lock = threading.RLock()
_sinks: list[LogSink] = []


class LogSink:
    """A log sink of ajet's, from now until `close`."""

    def __init__(self, write: Callable[[Any], None], *, level: str, format: str) -> None:
        # diagnose would write the values of local variables, keys among them, into tracebacks
        self._write, self._level, self._format = write, level, format
        with _lock:
            self._add_to_logger()
            _sinks.append(self)
            logger.remove = _remove_others  # type: ignore[method-assign]

    def close(self) -> None:
        """Take it away. Idempotent."""
        with _lock:
            if self in _sinks:
                _sinks.remove(self)
                _remove_from_logger(self.number)

    def _add_to_logger(self) -> None:
        self.number = logger.add(self._write, level=self._level, format=self._format, diagnose=False, backtrace=False)


_remove_from_logger: Callable[..., None] = logger.remove


def remove_first_sink() -> bool:
    """Take away the sink that loguru itself begins with; False where somebody has."""
    try:
        _remove_from_logger(_first)
    except ValueError:
        return False
    return True


def restore_first_sink() -> None:
    """Add loguru's first sink again, as loguru adds it."""
    global _first
    _first = logger.add(sys.stderr)


def _remove_others(handler_id: int | None = None) -> None:
    """`logger.remove` for everybody else."""
    with _lock:
        if handler_id is None:
            _remove_from_logger()
            for each in _sinks:
                each._add_to_logger()
        elif not any(each.number == handler_id for each in _sinks):
            try:
                _remove_from_logger(_first if handler_id == FIRST else handler_id)
            except ValueError:
                if handler_id != FIRST:
                    raise


COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


def show_logs(level: str) -> LogSink:
    """Show lines from `level` on, a word before a warning, until the sink is closed.

    They pass through the one console that draws the progress bars, so that neither tears the other apart.
    """
    from rich.text import Text

    from ajet.record.console import console

    def show(message: Any) -> None:
        name = message.record["level"].name
        text = str(message).rstrip("\n")
        label = f"{name.lower()}: " if name in COLOURS else ""
        console.print(Text.assemble((label, COLOURS.get(name, "")), text), soft_wrap=True)

    return LogSink(show, level=level, format="{message}")


@contextmanager
def show_logs_in_program() -> Iterator[None]:
    """Within the block a Python program shows them as a command does, where nobody has said how log lines are to look:
    the sink that loguru begins with is still there."""
    if not remove_first_sink():  # the program has its own
        yield
        return
    sink = show_logs("INFO")
    try:
        yield
    finally:
        sink.close()
        restore_first_sink()
