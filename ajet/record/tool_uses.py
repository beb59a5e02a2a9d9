"""Tool uses as they are kept: plain JSON, bounded, and as rows of an episode's line.

Invariant: `kept` of what is kept already is the same again; what it leaves out is counted in the use (`cut`) or stands
in it by digest, so that two different uses do not become one. `decode_uses(encode_uses(uses))` are the same uses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from ajet.record.plain_json import plain, strict_json
from ajet.schema.tool_use import ToolError, ToolUse, compute_digest

RESULT = 1 << 16
"""Characters kept of what the model was shown of one result, the first ones; its digest is kept in any case."""
ARGUMENTS = 1 << 16
"""Characters of JSON kept of one use's arguments."""
IN_ALL = 1 << 22
"""Characters kept of all results and arguments of an episode."""
MOST_USES = 10_000
"""Of an episode."""
NAME = 1_000
"""Characters of a name."""
CUT = "cut"
"""Stands for arguments that are longer: their beginning and their digest."""
_ERRORS = frozenset(get_args(ToolError))
_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(ToolUse) if isinstance(each.default, str | int)}


def canonical_json(arguments: Mapping[str, Any]) -> str:
    """Arguments as one text: the same for the same arguments, in whatever order they came."""
    return json.dumps(
        _replace_surrogates(plain(dict(arguments))), ensure_ascii=False, sort_keys=True, separators=(",", ":")
    )


def bound_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as plain JSON that is not too long, a copy."""
    text = canonical_json(arguments)
    if len(text) > ARGUMENTS:
        return {CUT: text[: ARGUMENTS // 4], "digest": compute_digest(text)}
    return dict(json.loads(text))


def bound_tool_use(use: ToolUse, room: int = RESULT + ARGUMENTS) -> ToolUse:
    """The use as the record keeps it, with at most `room` characters of result. Raises TypeError and ValueError for
    what is no use."""
    if not isinstance(use, ToolUse):
        raise TypeError(f"a tool use is an ajet.schema.tool_use.ToolUse, not a {type(use).__name__}")
    if use.error not in _ERRORS:
        raise ValueError(f"error {use.error!r} is none of {sorted(_ERRORS)}")
    if not isinstance(use.result, str):
        raise TypeError(f"the result of {use.name} is a {type(use.result).__name__}; it is the text that was shown")
    if not (math.isfinite(use.started) and math.isfinite(use.ended)):
        raise ValueError("its times are seconds since the epoch")
    most = max(0, min(RESULT, room))
    cut = max(0, len(use.result) - most)
    return replace(
        use,
        name=_replace_surrogates(str(use.name)[:NAME]),
        arguments=bound_arguments(use.arguments),
        result=_replace_surrogates(use.result[:most]),
        server=_replace_surrogates(str(use.server)[:NAME]),
        call_id=_replace_surrogates(str(use.call_id)[:NAME]),
        cut=use.cut + cut,
    )


def chain_digest(before: str, use: ToolUse) -> str:
    """The `chain` of a use; `before`: that of the one before it, "" of the first."""
    (row,) = encode_uses([replace(use, chain="")])
    return compute_digest(strict_json([before, row]))[:32]


def size_of(use: ToolUse) -> int:
    """Characters that it takes of `IN_ALL`."""
    return len(use.result) + len(strict_json(use.arguments))


def encode_uses(uses: Sequence[ToolUse]) -> list[dict[str, Any]]:
    """Rows of an episode's line; what has its default is left out."""
    names = [each.name for each in fields(ToolUse)]
    return [
        {name: value for name in names if (value := getattr(use, name)) != _DEFAULTS.get(name, _ALWAYS)} for use in uses
    ]


def decode_uses(rows: Any) -> list[ToolUse]:
    """The uses of those rows. Raises ValueError and kin for rows that are none."""
    if not isinstance(rows, list):
        raise ValueError("its tool uses are no list")
    return [_decode_use(row) for row in rows]


def _decode_use(row: Any) -> ToolUse:
    if not isinstance(row, dict):
        raise ValueError("a tool use is no JSON object")
    use = ToolUse(**{each.name: row[each.name] for each in fields(ToolUse) if each.name in row})
    texts, times = (use.name, use.result, use.digest, use.server, use.call_id), (use.started, use.ended)
    counts = (use.whole, use.cut, use.images)
    if not (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(time, int | float) for time in times)
        and all(isinstance(count, int) for count in counts)
        and isinstance(use.arguments, dict)
        and use.error in _ERRORS
    ):
        raise ValueError(f"a use of {use.name!r} is none")
    return use


_ALWAYS = object()


def _replace_surrogates(value: Any) -> Any:
    """Without halves of surrogate pairs, which no file can hold."""
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_surrogates(each) for each in value]
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value
