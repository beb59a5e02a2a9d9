"""status.json: what the run is doing now, for `ajet stop`, the viewer and people.

Invariant: the file is always whole (replaced, never edited); its processes carry their start times, so that nothing
is ever ended by a process id that somebody else has got since.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from ajet.record.bounded_json import read_json
from ajet.record.files import write_atomically
from ajet.record.lock import Holder
from ajet.record.plain import plain
from ajet.record.secrets import Redactor


class Status:
    """The content of `status.json`. Thread-safe."""

    def __init__(self, path: Path, redact: Redactor, *, run_id: str, name: str, kind: str) -> None:
        self._path, self._redact = path, redact
        self._lock = threading.RLock()
        holder = Holder.this()
        self._content: dict[str, Any] = {
            "run_id": run_id,
            "name": name,
            "kind": kind,
            "phase": "starting",
            "step": 0,
            "host": holder.host,
            "started": time.time(),
            "processes": [{"pid": holder.pid, "started": holder.started, "role": "run"}],
        }
        self.set()

    def set(self, **values: Any) -> None:
        """Change fields (phase="rollout", step=3, …) and replace the file."""
        with self._lock:
            self._content.update(plain(values))
            self._content["updated"] = time.time()
            text = json.dumps(self._redact.tree(self._content), indent=1, ensure_ascii=False)
            write_atomically(self._path, text + "\n")

    def add_process(self, pid: int, role: str) -> None:
        """Record a process that this run started, while it lives."""
        try:
            started = psutil.Process(pid).create_time()
        except psutil.NoSuchProcess:
            return
        with self._lock:
            processes = [entry for entry in self._content["processes"] if entry["pid"] != pid]
            self.set(processes=[*processes, {"pid": pid, "started": started, "role": role}])

    def get(self, name: str) -> Any:
        """A field's present value; None when it was never set."""
        return self._content.get(name)


def read_status(folder: Path) -> dict[str, Any] | None:
    """The status of the run in `folder`; None when it holds none. Raises OSError, ValueError for a damaged one."""
    try:
        return read_json(folder / "status.json")
    except FileNotFoundError:
        return None
