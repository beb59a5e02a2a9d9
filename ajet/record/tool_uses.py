"""Tool uses in the record: plain JSON, bounded, as rows of an episode's line.

Invariant: `bound_tool_use` is idempotent. Removed text is counted in the use (`cut`) or represented by a digest, so
different uses stay different. `decode_uses(encode_uses(uses))` equals the uses.
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
"""Maximum stored characters of a result shown to the model; the digest is always stored."""
ARGUMENTS = 1 << 16
"""Maximum stored characters of a use's arguments as JSON."""
IN_ALL = 1 << 22
"""Maximum stored characters of all results and arguments of an episode."""
MOST_USES = 10_000
"""Maximum stored uses of an episode."""
NAME = 1_000
"""Maximum stored characters of a name."""
CUT = "cut"
"""Key of shortened arguments: their beginning, next to the digest."""
_ERRORS = frozenset(get_args(ToolError))
_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in fields(ToolUse) if isinstance(field.default, str | int)
}


def canonical_json(arguments: Mapping[str, Any]) -> str:
    """Return a tool's arguments as one JSON text, independent of the order of keys."""
    return json.dumps(
        _replace_surrogates(plain(dict(arguments))), ensure_ascii=False, sort_keys=True, separators=(",", ":")
    )


def bound_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a tool's arguments as plain JSON; if too long, their beginning and a digest of all."""
    text = canonical_json(arguments)
    if len(text) > ARGUMENTS:
        return {CUT: text[: ARGUMENTS // 4], "digest": compute_digest(text)}
    return dict(json.loads(text))


def bound_tool_use(use: ToolUse, room: int = RESULT + ARGUMENTS) -> ToolUse:
    """Return the tool use as the record stores it: with bounded texts, of which cut characters are counted in `cut`.

    Args:
        use: The tool use as reported.
        room: Maximum characters of the result.

    Raises:
        TypeError: It is no ToolUse, or the result is no text.
        ValueError: The error class is unknown, or a time is not finite.
    """
    if not isinstance(use, ToolUse):
        raise TypeError(f"a tool use must be an ajet.schema.tool_use.ToolUse, not a {type(use).__name__}")
    if use.error not in _ERRORS:
        raise ValueError(f"the error {use.error!r} of the tool use is not one of {sorted(_ERRORS)}")
    if not isinstance(use.result, str):
        raise TypeError(
            f"the result of {use.name} is a {type(use.result).__name__}; expected a string, the text shown to the model"
        )
    if not (math.isfinite(use.started) and math.isfinite(use.ended)):
        raise ValueError("the times of a tool use must be seconds since the epoch")
    limit = max(0, min(RESULT, room))
    cut_characters = max(0, len(use.result) - limit)
    return replace(
        use,
        name=_replace_surrogates(str(use.name)[:NAME]),
        arguments=bound_arguments(use.arguments),
        result=_replace_surrogates(use.result[:limit]),
        server=_replace_surrogates(str(use.server)[:NAME]),
        call_id=_replace_surrogates(str(use.call_id)[:NAME]),
        cut=use.cut + cut_characters,
    )


def chain_digest(before: str, use: ToolUse) -> str:
    """Return the digest of all tool uses of an episode up to `use`.

    Args:
        before: Digest up to the previous use; "" for the first.
    """
    (row,) = encode_uses([replace(use, chain="")])
    return compute_digest(strict_json([before, row]))[:32]


def size_of(use: ToolUse) -> int:
    """Return how many characters a tool use counts towards `IN_ALL`, the limit of an episode."""
    return len(use.result) + len(strict_json(use.arguments))


def encode_uses(uses: Sequence[ToolUse]) -> list[dict[str, Any]]:
    """Return tool uses as JSON rows for an episode's line. Fields with their default value are left out."""
    names = [field.name for field in fields(ToolUse)]
    return [
        {name: value for name in names if (value := getattr(use, name)) != _DEFAULTS.get(name, _ALWAYS)} for use in uses
    ]


def decode_uses(rows: Any) -> list[ToolUse]:
    """Return the tool uses of an episode's line. Raises ValueError or TypeError for invalid rows."""
    if not isinstance(rows, list):
        raise ValueError("its tool uses are not a list")
    return [_decode_use(row) for row in rows]


def _decode_use(row: Any) -> ToolUse:
    """Return the tool use of a JSON row. Raises ValueError or TypeError for invalid values."""
    if not isinstance(row, dict):
        raise ValueError("a tool use is not a JSON object")
    use = ToolUse(**{field.name: row[field.name] for field in fields(ToolUse) if field.name in row})
    texts, times = (use.name, use.result, use.digest, use.server, use.call_id), (use.started, use.ended)
    counts = (use.whole, use.cut, use.images)
    if not (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(time, int | float) for time in times)
        and all(isinstance(count, int) for count in counts)
        and isinstance(use.arguments, dict)
        and use.error in _ERRORS
    ):
        raise ValueError(f"a use of {use.name!r} is invalid")
    return use


_ALWAYS = object()


def _replace_surrogates(value: Any) -> Any:
    """Return the value without halves of surrogate pairs, which no file can hold."""
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item_value) for key, item_value in value.items()}
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value
