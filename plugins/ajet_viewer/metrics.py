"""What a run's `metrics.jsonl` says from some byte on.

Invariant: only whole lines are read; the answer names the byte to go on from, and says when the file has become
shorter than that, as a resumed run cuts it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ajet.config.record_file import open_record_file
from ajet.record.bounded_json import parse_object

MOST_BYTES = 64 << 20
"""Of one answer; the rest is asked for next."""
LEFT_OUT = ("tasks", "again", "discarded", "waiting", "given_up")
"""Of a row: what no curve shows."""


def read_metrics(folder: Path, start: int) -> dict[str, Any]:
    """{rows, next, reset}: the rows from byte `start` on. Damaged lines are counted in `damaged`."""
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
