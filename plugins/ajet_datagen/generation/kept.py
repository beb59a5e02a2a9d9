"""GenerationStore: paid replies of the writing and embedding models on disk, one file per configuration.

Invariant: the file name is a digest of all inputs of the replies, so changed inputs start a new file. A line is
complete or absent. One process writes at a time, and other processes wait and find its replies.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.record.files import append_lines, cut_partial_line, explain_write_errors, read_rows
from ajet.record.lock import alone

ELSEWHERE = ", or set AJET_CACHE to another folder"


class GenerationStore:
    """Stored replies by the name of their prompt, and embeddings by text."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        identity = json.dumps(about, sort_keys=True, ensure_ascii=False)
        self.path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.jsonl"
        self._lock = threading.Lock()

    @contextmanager
    def open(self) -> Iterator[GenerationStore]:
        """Hold the file's lock within a block, and remove a partial last line first. Raises UserError."""
        with explain_write_errors(
            "the generated tasks",
            self.path.parent,
            intact="no request was sent to the model",
            other_folder=ELSEWHERE,
            room="it",
        ):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        activity, advice = "writes the same tasks", "set AJET_CACHE to another folder"
        with alone(self.path.with_suffix(".lock"), activity, do=advice):
            cut_partial_line(self.path)
            yield self

    def read_rows(self) -> dict[str, Any]:
        """Return the stored value of each name."""
        if not self.path.exists():
            return {}
        return {row["name"]: row["value"] for row in read_rows(self.path)}

    def append_row(self, name: str, value: Any) -> None:
        """Append a value and flush it to disk. Thread-safe."""
        with self._lock:
            append_lines(self.path, [json.dumps({"name": name, "value": value}, ensure_ascii=False)])
