"""Read a run's `metrics.jsonl` from a byte position.

Invariant: only complete lines are read. The result has the next position, and tells if the file was shortened by a
resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ajet.config.record_file import open_record_file
from ajet.record.bounded_json import parse_object

MOST_BYTES = 64 << 20
"""Maximum bytes of one response; the rest follows in the next."""
LEFT_OUT = ("tasks", "again", "discarded", "waiting", "given_up")
"""Fields not shown in curves."""


def read_metrics(folder: Path, start: int) -> dict[str, Any]:
    """Return {rows, next, reset, damaged}: the rows after byte `start`, and the number of damaged lines."""
    path = folder / "metrics.jsonl"
    try:
        with open_record_file(path) as file:
            size = file.seek(0, 2)
            reset = start > size
            file.seek(0 if reset else start)
            data = file.read(MOST_BYTES)
    except OSError:
        return {"rows": [], "next": 0, "reset": start > 0, "damaged": 0}
    complete = data[: data.rfind(b"\n") + 1]
    rows, damaged = [], 0
    for line in complete.splitlines():
        try:
            row = parse_object(line)
            rows.append({name: value for name, value in row.items() if name not in LEFT_OUT})
        except ValueError:
            damaged += 1
    return {"rows": rows, "next": (0 if reset else start) + len(complete), "reset": reset, "damaged": damaged}
