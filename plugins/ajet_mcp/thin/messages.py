"""JSON-RPC as MCP uses it: requests out, answers in, the frames of an event stream.

Invariant: nothing here does I/O. A frame that is no JSON-RPC is None, never an exception.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeGuard

from ajet.schema.bounded_json import load_json
from ajet.schema.errors import AjetError
from ajet.schema.settled import make_storable

SESSIONS = "2025-11-25"
"""The newest revision with sessions."""
STATELESS = "2026-07-28"
METHOD_NOT_FOUND, UNSUPPORTED_VERSION = -32601, -32022
_CLIENT = {"name": "ajet", "version": "1"}
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO: dict[str, Any] = {"protocolVersion": SESSIONS, "capabilities": {}, "clientInfo": _CLIENT}
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LONGEST_ID = 100
_LINE_END = re.compile(rb"\r\n|\r|\n")
_PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class RpcError(AjetError):
    """The server answered a request with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message") or "an error without words"))
        self.code, self.data = error.get("code"), error.get("data")


def request(number: int, method: str, params: Mapping[str, Any], *, stateless: bool = False) -> dict[str, Any]:
    """A request that is answered under `number`."""
    if stateless:
        params = {**params, "_meta": {**_META, **params.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}


def notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A message that is not answered."""
    return {"jsonrpc": "2.0", "method": method, **({"params": dict(params)} if params else {})}


def refusal(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to what a server asks of us: a ping, or what no client of a rollout offers."""
    if asked.get("method") == "ping":
        return {"jsonrpc": "2.0", "id": asked["id"], "result": {}}
    told = {"code": METHOD_NOT_FOUND, "message": f"this client offers no {str(asked.get('method'))[:100]}"}
    return {"jsonrpc": "2.0", "id": asked["id"], "error": told}


def encoded(message: Mapping[str, Any]) -> bytes:
    """Compact JSON; a lone surrogate, which no UTF-8 holds, is escaped."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":")).encode()


def _parse_float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_LOADS = partial(json.loads, parse_constant=lambda name: None, parse_float=_parse_float)


def load_reply(data: bytes | bytearray | str) -> Any:
    """Parse a server's JSON. NaN, Infinity and numbers beyond a float are null, as JavaScript writes them: no request
    to a model could carry them. Raises ValueError, RecursionError."""
    return make_storable(load_json(data, _LOADS))


def decoded(frame: bytes | str) -> dict[str, Any] | None:
    """A message; None for anything else."""
    try:
        message = load_reply(frame)
    except (ValueError, RecursionError):  # also an integer beyond what Python reads
        return None
    return message if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None


def asks(message: Mapping[str, Any]) -> bool:
    """Whether the server wants an answer of ours."""
    number = message.get("id")
    return "method" in message and (isinstance(number, int) or (isinstance(number, str) and len(number) <= _LONGEST_ID))


def id_of(message: Mapping[str, Any]) -> int | None:
    """Return the number of the request that a message answers, also where the server made text or a float of it."""
    number = message.get("id")
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 20:
        return int(number)
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def is_answer(message: Mapping[str, Any], number: int) -> bool:
    """True for the answer to a request on a connection that carries no other: servers answer what they could not read
    with an id of null, or with an error under an id of their own."""
    if "method" in message or not ("result" in message or "error" in message):
        return False
    told = id_of(message)
    return told == number or (told is None and (message.get("error") is not None or message.get("id") is None))


def result_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Raises RpcError."""
    error = message.get("error")
    if error is not None:
        raise RpcError(error if isinstance(error, Mapping) else {"message": str(error)})
    result = message.get("result")
    if result is not None and not isinstance(result, dict):
        raise RpcError({"message": f"its result is a {type(result).__name__}, expected an object"})
    return result or {}


def header_value(text: str) -> str:
    """`text` as an HTTP field may carry it: as it is, or in the base64 form that MCP defines."""
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def is_header_token(value: object) -> bool:
    """True for a text that may be part of an HTTP field's name."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def is_header_text(value: object) -> TypeGuard[str]:
    """True for a text that an HTTP field carries as it is."""
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def mirrored(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """A stateless call's `Mcp-Param-*` headers: arguments whose properties the schema marks with `x-mcp-header`."""
    found: dict[str, str] = {}
    properties = schema.get("properties")
    for name, each in properties.items() if isinstance(properties, dict) else ():
        value = arguments.get(name)
        if not isinstance(each, dict) or value is None:
            continue
        if isinstance(value, Mapping):
            found |= mirrored(each, value)
        elif is_header_token(token := each.get("x-mcp-header")) and isinstance(value, (str, bool, int)):
            found[f"Mcp-Param-{token}"] = header_value(str(value).lower() if isinstance(value, bool) else str(value))
    return found


class EventStream:
    """Server-sent events, cut into (event, data) as bytes arrive; lines end in LF, CRLF or CR."""

    def __init__(self) -> None:
        self._left: list[bytes] = []
        """Pieces of the line that has not ended."""
        self._after_cr = False
        self._begun = False
        self._event, self._data = "", list[str]()

    def take(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """The events that `chunk` completes."""
        if self._after_cr and chunk.startswith(b"\n"):  # the second half of a CRLF
            chunk = chunk[1:]
        if not chunk:
            return
        self._after_cr = chunk.endswith(b"\r")
        if _LINE_END.search(chunk) is None:
            self._left.append(chunk)
            return
        *lines, rest = _LINE_END.split(b"".join((*self._left, chunk)))
        self._left = [rest]
        for raw in lines:
            if raw or self._data:
                yield from self._read_line(raw)
            else:
                self._event, self._begun = "", True

    def finish(self) -> Iterator[tuple[str, str]]:
        """The event that the end of the stream completes, where the server wrote no empty line after it."""
        yield from self._read_line(b"".join(self._left))
        self._left = []
        yield from self._read_line(b"")

    def _read_line(self, raw: bytes) -> Iterator[tuple[str, str]]:
        line = raw.decode("utf-8", "replace")
        if not self._begun:
            self._begun, line = True, line.removeprefix("\ufeff")
        if not line:
            if self._data:
                yield self._event or "message", "\n".join(self._data)
            self._event, self._data = "", []
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
