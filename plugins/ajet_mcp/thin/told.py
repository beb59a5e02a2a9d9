"""Tools and replies as servers describe them, read into ours.

Invariant: what is written wrongly is left out, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.schema.json_schema import DATA_KEYWORDS, NAMED_SUBSCHEMAS
from ajet_mcp.contract import CallFailedError, Reply, Tool

CALL_ID = "ajet/callId"


def tool_of(told: Any) -> Tool | None:
    """The tool of a line of `tools/list`; None where it has no name."""
    if not isinstance(told, dict) or not isinstance(told.get("name"), str) or not told["name"]:
        return None
    hints, meta, schema = _as_object(told.get("annotations")), _as_object(told.get("_meta")), told.get("inputSchema")
    return Tool(
        told["name"],
        str(told.get("description") or ""),
        _without_nulls(schema) if isinstance(schema, dict) else {"type": "object"},
        repeatable=hints.get("idempotentHint") is True or hints.get("readOnlyHint") is True,
        takes_call_id=meta.get(CALL_ID) is True,
    )


def _as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without keywords that are null, which Go and Java servers write where they mean none."""
    plain: dict[str, Any] = {}
    for name, value in schema.items():
        if name in DATA_KEYWORDS and not (value is None and name in ("required", "type")):
            plain[name] = value
        elif name in NAMED_SUBSCHEMAS:
            plain[name] = {key: _build_schema(each) for key, each in _as_object(value).items()}
        elif isinstance(value, list):
            plain[name] = [_build_schema(each) for each in value]
        elif value is not None:
            plain[name] = _build_schema(value)
    return plain


def _build_schema(value: Any) -> Any:
    """Return a schema inside another one; null admits anything, as if it were not there."""
    return _without_nulls(value) if isinstance(value, dict) else {} if value is None else value


def reply_of(result: Mapping[str, Any]) -> Reply:
    """The reply in the result of `tools/call`."""
    content = result.get("content")
    blocks = tuple(each for each in content if isinstance(each, dict)) if isinstance(content, list) else ()
    return Reply(blocks, failed=result.get("isError") is True, structured=result.get("structuredContent"))


def lost_at_front(said: str, data: Any) -> CallFailedError | None:
    """What a front of ours says of a call that failed outside the model (a `boundary` in an error's data); None for any
    other error."""
    if not isinstance(data, Mapping) or not data.get("boundary"):
        return None
    return CallFailedError(said, "environment", lost=data.get("retryable") is not True)
