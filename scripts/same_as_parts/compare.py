"""Where two folders of results differ: every tensor's bytes, every episode, every row of metrics.

Invariant: two folders without a difference hold the same bits, but for what is `LEFT_OUT` here: times, speeds, memory,
random names and what says where on a machine a run lived. Files are read as they are, so that two versions can be
compared whatever became of their code; only a line of an earlier schema is read as one of today's. Files:
`*.safetensors`; `episodes/*.jsonl` with the arrays beside them; every other `.jsonl`; every other `.json`.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ajet.record.earlier_schemas import todays

LEFT_OUT = re.compile(
    r"(^|/)(time|started|ended|saved|updated|digest|uuid|group|ledger|run|run_id|blob|chain|transformers_version)$"
    r"|(^|/)(seconds|perf|memory)/|per_second|_gib$"
    r"|(^|/)base_model_name_or_path$"  # where the embedded model of that checkout lies
    r"|^(files|digests)/"  # in a checkpoint's state, of files whose contents are compared
)
"""Places within a row or a file, keys joined by slashes."""
FILES_LEFT_OUT = {"run.json", "status.json", "environment.json", "lock.json", "chain.jsonl"}
NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}
"""Of safetensors; bfloat16, which numpy lacks, is shown by its bits."""
ABSENT = "(not there)"
NEWER = re.compile(r"^\d+/(order|ending|printed)$|^state/frontier/(brought|count|ledger|used)$")
"""Of episodes what the first schema did not have, of checkpoints what they said before there was a store: it is not
missed there."""


@dataclass(frozen=True)
class Difference:
    """One place where they differ."""

    file: str
    place: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: {_short(self.before)} before, {_short(self.after)} now"


def differences(before: Path, after: Path, ignored: tuple[str, ...] = ()) -> Iterator[Difference]:
    """All of them, files by name. `ignored`: further patterns of places, matched anywhere in one."""
    skip = re.compile("|".join([LEFT_OUT.pattern, *ignored]))
    for name in sorted(_names(before) | _names(after)):
        places = (before / name, after / name)
        missing = [not place.exists() for place in places]
        if any(missing):
            yield Difference(name, "the file", *(ABSENT if gone else "there" for gone in missing))
        elif name.endswith(".safetensors"):
            yield from _of_tensors(name, *(tensors(place) for place in places))
        else:
            for place, one, other in _unlike("", *(_content(place) for place in places)):
                if not skip.search(place) and not (NEWER.search(place) and one == ABSENT):
                    yield Difference(name, place, one, other)


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Each tensor's number format, shape and bytes."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        start, stop = (8 + length + offset for offset in about["data_offsets"])
        found[name] = (about["dtype"], about["shape"], raw[start:stop])
    return found


def _names(folder: Path) -> set[str]:
    files = (path for path in folder.rglob("*") if path.suffix in (".safetensors", ".json", ".jsonl"))
    return {str(path.relative_to(folder)) for path in files if path.name not in FILES_LEFT_OUT}


def _of_tensors(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Difference]:
    for tensor in sorted(before.keys() | after.keys()):
        if tensor not in before or tensor not in after:
            yield Difference(name, tensor, *(ABSENT if tensor not in side else "there" for side in (before, after)))
            continue
        (kind, shape, raw), (other_kind, other_shape, other_raw) = before[tensor], after[tensor]
        if (kind, shape) != (other_kind, other_shape):
            yield Difference(name, tensor, f"{kind} {shape}", f"{other_kind} {other_shape}")
        elif raw != other_raw:
            number = np.dtype(NUMBERS.get(kind, "<u2" if kind == "BF16" else "u1"))
            one, other = (np.frombuffer(side, number) for side in (raw, other_raw))
            at, count = _first(one, other)
            index = [int(each) for each in np.unravel_index(at, shape)] if one.size == np.prod(shape) else [at]
            yield Difference(name, f"{tensor}{index} and {count - 1} more", one[at].item(), other[at].item())


def _first(one: Any, other: Any) -> tuple[int, int]:
    """The first place where the bits differ, and in how many they do."""
    bits = [np.frombuffer(side.tobytes(), np.uint8).reshape(side.size, -1) for side in (one, other)]
    unlike = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
    return int(unlike[0]), int(unlike.size)


def _content(path: Path) -> Any:
    """A JSON file's value; a line file's rows, episodes with their arrays."""
    if path.suffix == ".json":
        return _settled(json.loads(path.read_text())) if path.name == "adapter_config.json" else _read(path.read_text())
    rows = [_read(line) for line in path.read_text().splitlines()]
    arrays = path.with_suffix(".bin")
    return [_with_arrays(row, arrays.read_bytes()) for row in rows] if arrays.exists() else rows


def _read(text: str) -> Any:
    return json.loads(text)


def _settled(value: Any) -> Any:
    """peft writes a set of names in any order."""
    if isinstance(value, dict):
        return {key: _settled(each) for key, each in value.items()}
    return sorted(value, key=str) if isinstance(value, list) else value


def _with_arrays(row: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """A recorded episode with the numbers themselves where its line says [start, stop]."""
    place = row.pop("blob")
    raw = zlib.decompress(blob[place["offset"] : place["offset"] + place["length"]])
    row = {"outcome": dict(UNTAKEN), **todays(row)}
    counts = row["arrays"]
    ints = np.frombuffer(raw, "<i4", counts["ints"])
    floats = np.frombuffer(raw, "<f4", counts["floats"], 4 * counts["ints"])
    for part in [*row["calls"], *row["timelines"]]:
        for name in ("suffix_ids", "response_ids", "ids", "mask", "versions"):
            if name in part and part[name] and not isinstance(part[name][0], list):
                part[name] = ints[slice(*part[name])]
        for name in ("logprobs", "logprobs_unit"):
            if name in part:
                part[name] = floats[slice(*part[name])]
    return row


UNTAKEN = {"step": None, "advantage": None, "untrained": {}, "discarded": None}
"""What is told of an episode that no step has taken."""


def _unlike(place: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """(where, before, after), depth first."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            where = f"{place}/{key}" if place else str(key)
            yield from _unlike(where, before.get(key, ABSENT), after.get(key, ABSENT))
    elif isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        if before.shape != after.shape:
            yield f"{place}/length", before.size, after.size
        elif before.tobytes() != after.tobytes():
            at, count = _first(before, after)
            yield f"{place}[{at}] and {count - 1} more", before[at].item(), after[at].item()
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{place}/length", len(before), len(after)
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from _unlike(f"{place}/{index}" if place else str(index), one, other)
    elif type(before) is not type(after) or not (before == after or (before != before and after != after)):
        yield place, before, after


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "…"
