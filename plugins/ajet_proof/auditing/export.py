"""`ajet audit --export`: writes one row per episode, as JSON lines or Parquet.

Invariant: the file appears complete or not at all, ordered by step. Parquet has the same rows, with nested values as
JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ajet.config.record_file import open_replacement_file
from ajet.record.files import convert_os_errors, require_place
from ajet.record.plain_json import dumps
from ajet.schema.errors import MissingExtraError, UserError
from ajet_proof.auditing.audit import read_episode_rows

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
"""Column -> Parquet type; "json" columns hold JSON text."""


def export_episodes(folder: Path, target: Path) -> int:
    """Write one row per episode of a run to a file, and return the number of rows.

    Args:
        folder: The run's folder.
        target: The file, ending in .jsonl or .parquet.

    Raises:
        UserError: the file cannot be written, or has another suffix.
    """
    kinds = {".jsonl": _write_lines, ".parquet": _write_parquet}
    if target.suffix not in kinds:
        raise UserError(f"{target.name} has an unsupported suffix.", where="--export", expected=".jsonl, .parquet")
    require_place(target, "--export")
    with convert_os_errors(target, "--export"), open_replacement_file(target) as stream:
        return kinds[target.suffix](
            stream, ({name: row.get(name) for name in COLUMNS} for row in read_episode_rows(folder))
        )


def _write_lines(stream: BinaryIO, rows: Iterator[dict[str, Any]]) -> int:
    """Write rows as JSON lines, and return their number."""
    count = 0
    for row in rows:
        stream.write(f"{dumps(row)}\n".encode())
        count += 1
    return count


def _write_parquet(stream: BinaryIO, rows: Iterator[dict[str, Any]]) -> int:
    """Write rows as Parquet in blocks of ROWS_AT_ONCE, and return their number. Raises MissingExtraError without
    pyarrow."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "local", needed_for="A Parquet file") from error
    types = {name: arrow.string() if kind == "json" else getattr(arrow, kind)() for name, kind in COLUMNS.items()}
    schema, count = arrow.schema(list(types.items())), 0
    with parquet.ParquetWriter(stream, schema) as writer:
        while block := list(itertools.islice(rows, ROWS_AT_ONCE)):
            flat = [{name: _encode_cell(name, value) for name, value in row.items()} for row in block]
            writer.write_table(arrow.Table.from_pylist(flat, schema=schema))
            count += len(flat)
    return count


def _encode_cell(name: str, value: Any) -> Any:
    """Encode a value as JSON text if its column has the type "json"; other values stay unchanged."""
    return json.dumps(value, ensure_ascii=False) if COLUMNS[name] == "json" else value
