"""Log sinks of ajet that survive `logger.remove()`: loguru has one logger per process.

Invariant: a sink stays until closed, whatever a library or the user's code does to the logger. Sinks of other code are
untouched. `logger.remove(0)` means loguru's default sink; the call is accepted if ajet has removed that sink already,
and removes the restored one after a restore.
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
"""Current id of the default sink; changes after a restore."""
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
        with _lock:
            if self in _sinks:
                _sinks.remove(self)
                _remove_from_logger(self.number)

    def _add_to_logger(self) -> None:
        self.number = logger.add(self._write, level=self._level, format=self._format, diagnose=False, backtrace=False)


_remove_from_logger: Callable[..., None] = logger.remove


def remove_first_sink() -> bool:
    """Remove loguru's default sink; False if already removed."""
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
    """Replacement of `logger.remove` for all other code."""
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
    """Show log lines from `level` on until the sink is closed; warnings and errors get a label.

    Lines go through the shared console, so progress bars and lines do not overwrite each other.
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
    """Show log lines within the block as a command does, if loguru's default sink is still present."""
    if not remove_first_sink():  # the program has its own
        yield
        return
    sink = show_logs("INFO")
    try:
        yield
    finally:
        sink.close()
        restore_first_sink()
