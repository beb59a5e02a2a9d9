"""A command's output other than results: log lines (`ajet.record.logs`) and warnings.

Invariant: a process of ajet has one sink for shown log lines, and no default sink of loguru.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.record.logs import LogSink

_shown: LogSink | None = None


def show_logs(level: str = "INFO") -> None:
    """Print log lines from `level` on in a short form. An earlier call's level no longer holds.

    Log files of runs stay as they are, with lines of all levels.
    """
    from loguru import logger

    from ajet.record import logs

    global _shown
    if _shown is not None:
        _shown.close()
    logger.remove()
    _shown = logs.show_logs(level)


def warn(text: str) -> None:
    """Print one line of warning, as a log line."""
    from loguru import logger

    logger.warning(text)


@contextmanager
def redirect_to_stderr(wanted: bool) -> Iterator[None]:
    """While the block runs, print the console's output to standard error if `wanted`: standard output is for JSON."""
    from ajet.record.console import console

    was_stderr, console.stderr = console.stderr, wanted or console.stderr
    try:
        yield
    finally:
        console.stderr = was_stderr
