"""What was generated so far, on the disk: one file of lines for one set of settings.

Invariant: the name is made of all that changes what a model would write, so that a change asks anew and nothing else
does. A line is whole or is not there; one process writes at a time, others wait and find it done.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.record.files import append_lines, cut_partial_line, read_rows
from ajet.record.lock import alone
from ajet.record.write_errors import explain_write_errors

ELSEWHERE = ", or name another folder in the variable AJET_CACHE"


class GenerationStore:
    """Replies by number, and embeddings by text."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        identity = json.dumps(about, sort_keys=True, ensure_ascii=False)
        self.path = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.jsonl"
        self._turn = threading.Lock()

    @contextmanager
    def open(self) -> Iterator[GenerationStore]:
        """Held by this process until it is left. Raises UserError where nothing can be kept there."""
        with explain_write_errors(
            "what a model writes", self.path.parent, intact="nothing was asked", other_folder=ELSEWHERE, room="it"
        ):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        does, do = "writes the same tasks", "set AJET_CACHE to another one"
        with alone(self.path.with_suffix(".lock"), does, do=do):
            cut_partial_line(self.path)
            yield self

    def read_rows(self) -> dict[str, Any]:
        """The answer that is kept for each name."""
        if not self.path.exists():
            return {}
        return {row["name"]: row["value"] for row in read_rows(self.path)}

    def append_row(self, name: str, value: Any) -> None:
        """On return it is on the disk. One thread at a time: another's half line is not to be cut off."""
        with self._turn:
            append_lines(self.path, [json.dumps({"name": name, "value": value}, ensure_ascii=False)])
