"""logs/RUN_ROLE_RANK.log: all log lines of one process of a run, with secrets redacted.

Invariant: every written line has passed the redactor and contains no terminal control characters. A disk error ends no
run.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

from ajet.config.record_file import has_record_file, list_record_folder, open_record_descriptor
from ajet.record.console import console, replace_control_characters
from ajet.record.log_sinks import LogSink
from ajet.record.secrets import Redactor

LEADING = ("trainer", "serve", "debug", "eval")
"""Roles of processes started by a person."""
FORMAT = "{time:YYYY-MM-DD HH:mm:ss.SSS} | {level: <8} | {name}:{line} | {message}"


def log_name(run: Path, role: str, rank: int | str = 0) -> str:
    """Return the name of a process' log file. `role`: task of the process; `rank`: number within the role."""
    parts = (re.sub(r"[^A-Za-z0-9.-]+", "-", part).strip("-") for part in (role, str(rank)))
    return "_".join([run.name, *parts]) + ".log"


def main_log(run: Path) -> Path:
    """Return the newest log of a leading process; the trainer's path without any."""
    ends = tuple(f"_{role}_0.log" for role in LEADING)
    named = [run / "logs" / name for name in list_record_folder(run / "logs") if name.endswith(ends)]
    return max(
        filter(has_record_file, named),
        key=lambda path: path.stat().st_mtime,
        default=run / "logs" / log_name(run, LEADING[0]),
    )


class LogFile:
    """A loguru sink into one file, from `open` until `close`."""

    def __init__(self, path: Path, redact: Redactor) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._redact = redact
        self._file = io.FileIO(open_record_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
        self._lost = 0
        self._sink: LogSink | None = LogSink(self._write_message, level="DEBUG", format=FORMAT)

    def _write_message(self, message: Any) -> None:
        text = replace_control_characters(self._redact(str(message)))
        if self._lost:
            text = f"({self._lost} earlier messages could not be written)\n{text}"
        try:
            self._file.write(text.encode(errors="backslashreplace"))
            self._lost = 0
        except OSError as error:
            if not self._lost:
                console.print(f"warning: {self.path} cannot be written: {error.strerror}", markup=False, soft_wrap=True)
            self._lost += 1

    def close(self) -> None:
        """Stop logging to the file. Idempotent."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None
            self._file.close()
