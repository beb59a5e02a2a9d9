"""Converts tool listings and tool results from a server's JSON.

Invariant: malformed parts are dropped, without an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.schema.json_schema import DATA_KEYWORDS, NAMED_SUBSCHEMAS
from ajet_mcp.contract import CallFailedError, Reply, Tool

CALL_ID = "ajet/callId"


def tool_of(entry: Any) -> Tool | None:
    """Parse an entry of `tools/list`; None for an entry without a name."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        return None
    hints, meta, schema = _as_object(entry.get("annotations")), _as_object(entry.get("_meta")), entry.get("inputSchema")
    return Tool(
        entry["name"],
        str(entry.get("description") or ""),
        _without_nulls(schema) if isinstance(schema, dict) else {"type": "object"},
        repeatable=hints.get("idempotentHint") is True or hints.get("readOnlyHint") is True,
        takes_call_id=meta.get(CALL_ID) is True,
    )


def _as_object(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object, else {}."""
    return value if isinstance(value, dict) else {}


def _without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without null keywords; Go and Java servers write null for absent keywords."""
    cleaned: dict[str, Any] = {}
    for name, value in schema.items():
        if name in DATA_KEYWORDS and not (value is None and name in ("required", "type")):
            cleaned[name] = value
        elif name in NAMED_SUBSCHEMAS:
            cleaned[name] = {key: _clean_schema(subschema) for key, subschema in _as_object(value).items()}
        elif isinstance(value, list):
            cleaned[name] = [_clean_schema(item) for item in value]
        elif value is not None:
            cleaned[name] = _clean_schema(value)
    return cleaned


def _clean_schema(value: Any) -> Any:
    """Remove null keywords from a nested schema. A null schema accepts any value, like an absent one."""
    return _without_nulls(value) if isinstance(value, dict) else {} if value is None else value


def reply_of(result: Mapping[str, Any]) -> Reply:
    """Convert the result of `tools/call` to a `Reply`. Content parts that are no objects are dropped."""
    content = result.get("content")
    blocks = tuple(block for block in content if isinstance(block, dict)) if isinstance(content, list) else ()
    return Reply(blocks, failed=result.get("isError") is True, structured=result.get("structuredContent"))


def lost_at_front(message: str, data: Any) -> CallFailedError | None:
    """Return the failure that an environment of `ajet env up` reports, or None for other errors.

    Such an error names the failing side in `boundary`, for example a dead tool server.
    """
    if not isinstance(data, Mapping) or not data.get("boundary"):
        return None
    return CallFailedError(message, "environment", lost=data.get("retryable") is not True)
