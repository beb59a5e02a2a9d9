"""logs/RUN_ROLE_RANK.log: all log lines of one process of a run, with secrets redacted.

Invariant: every written line has passed the redactor and contains no terminal control characters. A disk error ends no
run.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.config.record_file import has_record_file, list_record_folder, open_record_descriptor
from ajet.record.console import console, replace_control_characters
from ajet.record.secrets import Redactor

LEADING = ("trainer", "serve", "debug", "eval", "prompt")
"""Roles of processes started by a person."""
FORMAT = "{time:YYYY-MM-DD HH:mm:ss.SSS} | {level: <8} | {name}:{line} | {message}"


def log_name(run: Path, role: str, rank: int | str = 0) -> str:
    """Return the name of a process's log file, RUN_ROLE_RANK.log.

    Args:
        run: The run's folder.
        role: Task of the process, such as "trainer".
        rank: Number of the process within its role.
    """
    parts = (re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-") for part in (role, str(rank)))
    return "_".join([run.name, *parts]) + ".log"


def main_log(run: Path) -> Path:
    """Return the newest log of the processes that a person started, or the trainer's path if there is no log."""
    endings = tuple(f"_{role}_0.log" for role in LEADING)
    log_files = [run / "logs" / name for name in list_record_folder(run / "logs") if name.endswith(endings)]
    return max(
        filter(has_record_file, log_files),
        key=lambda path: path.stat().st_mtime,
        default=run / "logs" / log_name(run, LEADING[0]),
    )


class LogFile:
    """The log of one process: receives all log lines from its creation until `close`."""

    def __init__(self, path: Path, redact: Redactor) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._redact = redact
        self._file = io.FileIO(open_record_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
        self._lost_count = 0
        self._sink: LogSink | None = LogSink(self._write_message, level="DEBUG", format=FORMAT)

    def _write_message(self, message: Any) -> None:
        """Write a log line without secrets and control characters. A disk error loses the line, and is printed once."""
        text = replace_control_characters(self._redact(str(message)))
        if self._lost_count:
            text = f"({self._lost_count} earlier messages could not be written)\n{text}"
        try:
            self._file.write(text.encode(errors="backslashreplace"))
            self._lost_count = 0
        except OSError as error:
            if not self._lost_count:
                console.print(f"warning: {self.path} cannot be written: {error.strerror}", markup=False, soft_wrap=True)
            self._lost_count += 1

    def close(self) -> None:
        """Stop logging to the file. Idempotent."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None
            self._file.close()


# Log sinks of ajet that survive `logger.remove()`: loguru has one logger per process.
# Invariant: a sink stays until closed, whatever a library or the user's code does to the logger. Sinks of other
# code are untouched. `logger.remove(0)` means loguru's default sink; the call is accepted if ajet has removed that
# sink already, and removes the restored one after a restore.
FIRST = 0
"""The id of the sink that loguru itself begins with."""
_first = FIRST
"""Current id of the default sink; changes after a restore."""
_lock = threading.RLock()
_sinks: list[LogSink] = []


class LogSink:
    """A loguru sink of ajet, which receives log lines until `close`."""

    def __init__(self, write: Callable[[Any], None], *, level: str, format: str) -> None:
        # diagnose would write the values of local variables, keys among them, into tracebacks
        self._write = write
        self._level = level
        self._format = format
        with _lock:
            self._add_to_logger()
            _sinks.append(self)
            logger.remove = _remove_others  # type: ignore[method-assign]

    def close(self) -> None:
        """Stop receiving log lines. Idempotent."""
        with _lock:
            if self in _sinks:
                _sinks.remove(self)
                _remove_from_logger(self.number)

    def _add_to_logger(self) -> None:
        self.number = logger.add(self._write, level=self._level, format=self._format, diagnose=False, backtrace=False)


_remove_from_logger: Callable[..., None] = logger.remove


def remove_first_sink() -> bool:
    """Remove loguru's default sink, which prints to standard error. Return False if it was removed before."""
    try:
        _remove_from_logger(_first)
    except ValueError:
        return False
    return True


def restore_first_sink() -> None:
    """Add loguru's default sink again, with loguru's own settings."""
    global _first
    _first = logger.add(sys.stderr)


def _remove_others(handler_id: int | None = None) -> None:
    """Replacement of `logger.remove` that keeps ajet's sinks.

    Libraries and the user's code remove all sinks to configure loguru for themselves. The run's log must not end then.
    """
    with _lock:
        if handler_id is None:
            _remove_from_logger()
            for sink in _sinks:
                sink._add_to_logger()
        elif not any(sink.number == handler_id for sink in _sinks):
            try:
                _remove_from_logger(_first if handler_id == FIRST else handler_id)
            except ValueError:
                if handler_id != FIRST:
                    raise


COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


def show_logs(level: str) -> LogSink:
    """Show log lines from `level` on until the sink is closed. Warnings and errors get a label.

    Lines go through the shared console, so progress bars and lines do not overwrite each other.
    """
    from rich.text import Text

    def show(message: Any) -> None:
        name = message.record["level"].name
        text = str(message).rstrip("\n")
        label = f"{name.lower()}: " if name in COLOURS else ""
        console.print(Text.assemble((label, COLOURS.get(name, "")), text), soft_wrap=True)

    return LogSink(show, level=level, format="{message}")


@contextmanager
def show_logs_in_program() -> Iterator[None]:
    """Within the block, show log lines as a command does, if the program has not set up loguru itself."""
    if not remove_first_sink():  # the program has its own
        yield
        return
    sink = show_logs("INFO")
    try:
        yield
    finally:
        sink.close()
        restore_first_sink()
