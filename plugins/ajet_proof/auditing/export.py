"""`ajet audit --export`: one row an episode, with what it fed, as JSON lines or Parquet.

Invariant: the file appears whole or not at all, in the order of the steps; a Parquet file has the same rows, what is
nested in them as JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ajet.config.record_file import open_replacement_file
from ajet.record.plain_json import dumps
from ajet.record.write_errors import require_place, written
from ajet.schema.errors import MissingExtraError, UserError
from ajet_proof.auditing.audit import episode_rows

ROWS_AT_ONCE = 4096
COLUMNS = {
    **dict.fromkeys(("uuid", "task", "question", "group", "split", "run", "sampler", "status", "ending"), "string"),
    **dict.fromkeys(("failure", "verdict", "scorer", "discarded", "file"), "string"),
    **dict.fromkeys(("order", "repeat", "played_for", "attempts", "sampled_tokens", "trained_tokens"), "int64"),
    **dict.fromkeys(("trained_in", "first_checkpoint", "line"), "int64"),
    **dict.fromkeys(("started", "ended", "reward", "advantage"), "float64"),
    "success": "bool_",
    **dict.fromkeys(("policy", "scores", "calls", "tools", "untrained", "checkpoints"), "json"),
}
"""Of the Parquet file; what is none of them stands in the JSON lines, too, and nowhere else."""


def export(folder: Path, target: Path) -> int:
    """Write the episodes of the run in `folder`; answers how many. Raises UserError."""
    kinds = {".jsonl": _write_lines, ".parquet": _write_parquet}
    if target.suffix not in kinds:
        raise UserError(f"{target.name} is of no kind that is written.", where="--export", expected=".jsonl, .parquet")
    require_place(target, "--export")
    with written(target, "--export"), open_replacement_file(target) as stream:
        return kinds[target.suffix](stream, _rows(folder))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for row in episode_rows(folder):
        yield {name: row.get(name) for name in COLUMNS}


def _write_lines(stream: BinaryIO, rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    for row in rows:
        stream.write(f"{dumps(row)}\n".encode())
        count += 1
    return count


def _write_parquet(stream: BinaryIO, rows: Iterator[dict[str, Any]]) -> int:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "local", needed_for="A Parquet file") from error
    types = {name: arrow.string() if kind == "json" else getattr(arrow, kind)() for name, kind in COLUMNS.items()}
    schema, count = arrow.schema(list(types.items())), 0
    with parquet.ParquetWriter(stream, schema) as writer:
        while block := list(itertools.islice(rows, ROWS_AT_ONCE)):
            flat = [{name: _cell(name, value) for name, value in row.items()} for row in block]
            writer.write_table(arrow.Table.from_pylist(flat, schema=schema))
            count += len(flat)
    return count


def _cell(name: str, value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if COLUMNS[name] == "json" else value
