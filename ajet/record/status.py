"""status.json: the current state of a run, for `ajet stop`, the viewer and people.

Invariant: the file is always complete (replaced, never edited). Recorded processes carry start time and location, so a
reused pid is never signalled. After the start, a failed write is only a warning and ends no run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from loguru import logger

from ajet.record.files import read_json, write_atomically
from ajet.record.plain_json import plain
from ajet.record.process_identity import ProcessIdentity
from ajet.record.secrets import Redactor
from ajet.schema.errors import UserError

TO_VALIDATE = "to_validate"
"""Field of status.json: number of episodes that the running validation still has to play."""


class StatusFile:
    """The file `status.json` of a run, replaced at each change. Thread-safe.

    The constructor raises OSError if the file cannot be written; later failures are only logged.
    """

    def __init__(self, path: Path, redact: Redactor, *, run_id: str, name: str, kind: str) -> None:
        """Write the first status of the run, with this process as its only one.

        Args:
            path: The file.
            redact: Removes secrets from the values.
            run_id: Identity of the run.
            name: The run's folder below the folder of all runs.
            kind: What the run does: train, debug, eval, prompt or serve.
        """
        self._path, self._redact = path, redact
        self._lock = threading.RLock()
        this_process = ProcessIdentity.of(os.getpid())
        self._content: dict[str, Any] = {
            "run_id": run_id,
            "name": name,
            "kind": kind,
            "phase": "starting",
            "step": 0,
            "host": this_process.host,
            "boot": this_process.boot,
            "space": this_process.space,
            "started": time.time(),
            "processes": [_process_entry(this_process, "run")],
        }
        self._content["updated"] = self._content["since"] = self._content["started"]
        self._is_failing = False
        self._write_file()

    def set(self, **values: Any) -> None:
        """Change fields of the status (phase="rollout", step=3, …) and replace the file."""
        with self._lock:
            now = time.time()
            if values.get("phase", self._content["phase"]) != self._content["phase"]:
                self._content["since"] = now
            self._content.update(plain(values))
            self._content["updated"] = now
            try:
                self._write_file()
            except OSError as error:
                if not self._is_failing:
                    logger.warning("the status of the run cannot be written to {}: {}", self._path, error.strerror)
                self._is_failing = True
            else:
                self._is_failing = False

    def _write_file(self) -> None:
        """Replace the file by the present content, without secrets."""
        text = json.dumps(self._redact.tree(self._content), indent=1, ensure_ascii=False)
        write_atomically(self._path, text + "\n")

    def add_process(self, pid: int, role: str) -> None:
        """Add a live process that this run started. A process that has ended already is ignored.

        Args:
            role: What the process does.
        """
        try:
            process = ProcessIdentity.of(pid)
        except psutil.NoSuchProcess:
            return
        with self._lock:
            processes = [entry for entry in self._content["processes"] if entry["pid"] != pid]
            self.set(processes=[*processes, _process_entry(process, role)])

    def get(self, name: str) -> Any:
        """Return the present value of a field of the status, or None if it was never set."""
        return self._content.get(name)


def _process_entry(process: ProcessIdentity, role: str) -> dict[str, Any]:
    """Return a process as JSON values, for the status file."""
    return {"pid": process.pid, "started": process.started, "ticks": process.ticks, "role": role}


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return the content of `status.json` of the run in `folder`, or None without the file.

    Raises:
        OSError: The file cannot be read.
        UserError: It is damaged.
    """
    path = folder / "status.json"
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(
            f"The status of this run is damaged: {error}.",
            where=str(path),
            expected="the JSON object that ajet writes to this file",
            do="resume the run, which replaces the file; end its remaining processes by hand",
        ) from error


def recorded_processes(status: dict[str, Any]) -> list[tuple[ProcessIdentity, str]]:
    """Return (process, role) of each process that a status lists. Invalid entries are skipped."""
    processes = []
    host_fields = {name: status.get(name) for name in ("host", "boot", "space")}
    entries = status.get("processes")
    for entry in entries if isinstance(entries, list) else []:
        try:
            processes.append((ProcessIdentity.recorded({**host_fields, **entry}), str(entry.get("role"))))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return processes


def find_run_state(status: dict[str, Any]) -> str:
    """Return the state of a run by its status: its outcome if it has one, "running", "stopped" or "unknown".

    "stopped" means that the process is gone without an outcome, as after a kill.
    """
    if status.get("outcome"):
        return str(status["outcome"])
    for process, role in recorded_processes(status):
        if role == "run":
            return "running" if process.alive() else "stopped"
    return "unknown"
