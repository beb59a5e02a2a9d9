"""AgentTrainer's data sets as JSON Lines, readable by every backbone.

Invariants: every row arrives with all columns; a row in verl's form (`reward_model.ground_truth`) also gets its truth
as `answer`. A file is named by its content, so trainers with one `run_path` do not overwrite each other's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.record.files import write_atomically

_KINDS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_DIGEST = 6
"""Bytes of the content's digest."""


def write_lines(given: Any, file: Path, base: Path) -> Path | None:
    """Write a data set and return its file, with a digest added to `file`'s name; None without data. Raises ValueError.

    `given`: a data set, rows, or a path relative to `base`.
    """
    if given is None:
        return None
    rows = _read_file(base / given) if isinstance(given, (str, Path)) else given
    if not isinstance(rows, Iterable) or isinstance(rows, Mapping):
        raise ValueError(f"the data set is a {type(given).__name__}; expected a datasets.Dataset, rows, or a path")
    lines = [_format_row(row, number) for number, row in enumerate(rows)]
    if not lines:
        raise ValueError("the data set has no rows")
    text = "".join(lines)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).hexdigest()
    file = file.with_name(f"{file.stem}-{digest}{file.suffix}")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)
    return file


def _read_file(path: Path) -> Any:
    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise ValueError(f"{path} is not a data set; expected {', '.join(_KINDS)}")
    if not path.is_file():
        raise ValueError(f"the data set {path} does not exist")
    from datasets import Dataset

    return getattr(Dataset, f"from_{kind}")(str(path), keep_in_memory=True)


def _format_row(row: Any, number: int) -> str:
    if not isinstance(row, Mapping):
        raise ValueError(f"row {number} of the data set is a {type(row).__name__}; expected named columns")
    row = dict(row)
    truth = row.get("reward_model")
    if "answer" not in row and isinstance(truth, Mapping) and "ground_truth" in truth:
        row["answer"] = truth["ground_truth"]
    try:
        return json.dumps(row, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as problem:
        raise ValueError(f"row {number} of the data set cannot be written as JSON: {problem}") from None
