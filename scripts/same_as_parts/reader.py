"""`python reader.py RUN`: print what is compared of a run folder, one JSON line `[step, place, value]` per value.

It runs with the code of one version, whose own `ajet.record` reads the episodes. Values are numbers, lists of numbers
and digests; times, speeds, memory and random names are left out. A folder without `episodes/` has metrics and weights
alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.record import RecordedRun

LEFT_OUT = re.compile(r"^(time|step)$|(^|/)(seconds|perf|memory|samplers?)/|per_second|seconds|_gib$")
"""Metrics that differ from start to start."""
EPISODE = (
    "order", "repeat", "status", "reward", "success", "calls", "advantage", "trained_in", "discarded", "policy_low",
    "policy_high",
)  # fmt: skip
TOKEN = {"id": "ids", "trained": "mask", "logprob": "logprobs", "logprob_unit": "logprobs_unit", "version": "versions"}
Entry = tuple[int, str, object]


def read_run(run: Path) -> Iterator[Entry]:
    """Yield metrics, then episodes, then the last weights."""
    yield from read_metrics(run / "metrics.jsonl")
    if (run / "episodes").exists():
        import ajet.record

        yield from read_episodes(ajet.record.open(run))
    steps = sorted((int(each.name.removeprefix("step-")), each) for each in (run / "checkpoints").glob("step-*"))
    for file in [*steps[-1][1].glob("*.safetensors"), *steps[-1][1].glob("adapter/*.safetensors")] if steps else []:
        yield from read_tensors(file, steps[-1][0], file.relative_to(steps[-1][1]).as_posix())


def read_metrics(path: Path) -> Iterator[Entry]:
    """Yield the numbers of each row, and the tasks that it trained."""
    for row in map(json.loads, path.read_text().splitlines()):
        for name, value in row.items():
            if not LEFT_OUT.search(name) and not isinstance(value, (str, dict)):
                yield row.get("step", 0), name, value


def read_episodes(run: RecordedRun) -> Iterator[Entry]:
    """Yield each episode's outcome and tokens, in the order of the record."""
    for number, row in enumerate(run.episodes().to_dict("records")):
        step, name = int(row["step"]), f"episode {number} ({row['task']}, repeat {row['repeat']})"
        extra = [key for key in row if key.startswith(("workflow.", "judge.", "scorer."))]
        for key in [*EPISODE, *extra]:
            yield step, f"{name}: {key}", _plain(row[key])
        tokens = run.tokens(row["uuid"])
        for column, called in TOKEN.items():
            yield step, f"{name}: {called}", [_plain(each) for each in tokens[column]] if len(tokens) else []


def read_tensors(path: Path, step: int, name: str) -> Iterator[Entry]:
    """Yield a digest of each tensor of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    for tensor in sorted(header.keys() - {"__metadata__"}):
        start, stop = (8 + length + offset for offset in header[tensor]["data_offsets"])
        digest = hashlib.sha256(raw[start:stop]).hexdigest()[:16]
        yield step, f"{name} {tensor}", f"{header[tensor]['dtype']} {header[tensor]['shape']} {digest}"


def read_plain(folder: Path) -> Iterator[Entry]:
    """Yield what is in a folder that is no run's: its metrics and tensors."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".jsonl":
            yield from ((step, f"{name} {place}", value) for step, place, value in read_metrics(path))
        elif path.suffix == ".safetensors":
            yield from read_tensors(path, 0, name)


def _plain(value: object) -> object:
    """Return a JSON value for one of pandas; missing numbers are null."""
    value = value.item() if hasattr(value, "item") else value
    return None if value != value else value


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for entry in read_run(folder) if (folder / "metrics.jsonl").exists() else read_plain(folder):
        print(json.dumps(entry))
