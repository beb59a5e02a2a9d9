"""Replies that real servers or hostile ones send, by name: (method, the message's changed parts)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

INITIALIZE, LIST, CALL = "initialize", "tools/list", "tools/call"


def deep(levels: int = 400) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


ODD: dict[str, Any] = {
    "null": None, "number": 7, "list": [1], "text": "x", "true": True, "object": {"a": None},
    "deep": deep(), "surrogate": "\ud800", "crlf": "a\r\nb: c", "huge": 10**4000,
}  # fmt: skip
TOOL = {"name": "f", "description": "d", "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}


def answer(method: str, kind: str, place: str) -> dict[str, Any]:
    """The answer to `method` with the odd value `kind` at `place` ("method:key.key")."""
    result: Any = {}
    if method == INITIALIZE:
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x"}}
    elif method == LIST:
        result = {"tools": [deepcopy(TOOL)]}
    elif method == CALL:
        result = {"content": [{"type": "text", "text": "done"}], "isError": False}
    message = {"jsonrpc": "2.0", "result": result}
    at, _, path = place.partition(":")
    if at == method:
        *above, last = path.split(".")
        target: Any = message
        for key in above:
            target = target[int(key) if isinstance(target, list) else key]
        target[int(last) if isinstance(target, list) else last] = ODD[kind]
    return message


PLACES = [
    *(f"{method}:{key}" for method in (INITIALIZE, LIST, CALL) for key in ("result", "error", "id", "jsonrpc")),
    f"{INITIALIZE}:result.protocolVersion", f"{INITIALIZE}:result.capabilities",
    f"{LIST}:result.tools", f"{LIST}:result.tools.0", f"{LIST}:result.nextCursor",
    *(f"{LIST}:result.tools.0.{key}" for key in ("name", "description", "inputSchema", "annotations", "_meta")),
    *(f"{LIST}:result.tools.0.inputSchema.{key}" for key in
      ("properties", "required", "type", "$schema", "$id", "$ref", "$defs", "properties.a")),
    *(f"{CALL}:result.{key}" for key in
      ("content", "content.0", "content.0.type", "content.0.text", "structuredContent", "isError")),
]  # fmt: skip
