"""JSON-RPC messages of MCP: builds requests, parses replies, and splits event streams.

Invariant: this module does no I/O. A frame (one line or event) that is no JSON-RPC parses to None, never to an
exception.
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
"""The newest MCP revision with sessions."""
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
        super().__init__(str(error.get("message") or "an error without a message"))
        self.code, self.data = error.get("code"), error.get("data")


def request(number: int, method: str, params: Mapping[str, Any], *, stateless: bool = False) -> dict[str, Any]:
    """Build a JSON-RPC request with the id `number`; `stateless` adds the metadata of the stateless MCP revision."""
    if stateless:
        params = {**params, "_meta": {**_META, **params.get("_meta", {})}}
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}


def notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build a JSON-RPC notification, which gets no reply."""
    return {"jsonrpc": "2.0", "method": method, **({"params": dict(params)} if params else {})}


def refusal(message: Mapping[str, Any]) -> dict[str, Any]:
    """Build the reply to a request that the server sends: a result for ping, an error for any other method."""
    if message.get("method") == "ping":
        return {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    error = {"code": METHOD_NOT_FOUND, "message": f"this client offers no {str(message.get('method'))[:100]}"}
    return {"jsonrpc": "2.0", "id": message["id"], "error": error}


def encoded(message: Mapping[str, Any]) -> bytes:
    """Encode a message as compact JSON; a lone surrogate is escaped, since UTF-8 cannot hold it."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":")).encode()


def _parse_float(text: str) -> float | None:
    """Return a JSON number as float, or None if it is too large for one."""
    value = float(text)
    return value if math.isfinite(value) else None


_LOADS = partial(json.loads, parse_constant=lambda name: None, parse_float=_parse_float)


def load_reply(data: bytes | bytearray | str) -> Any:
    """Parse a server's JSON.

    NaN, Infinity and numbers too large for a float become null, as in JavaScript. A request to a model could not carry
    them.

    Raises:
        ValueError, RecursionError: the text is not JSON, or nested too deeply.
    """
    return make_storable(load_json(data, _LOADS))


def decoded(frame: bytes | str) -> dict[str, Any] | None:
    """Parse one line or event as a JSON-RPC message. Return None for any other content."""
    try:
        message = load_reply(frame)
    except (ValueError, RecursionError):  # the frame is no JSON, or has an integer too long for Python
        return None
    return message if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None


def expects_reply(message: Mapping[str, Any]) -> bool:
    """Return True if a message of the server requires a reply."""
    request_id = message.get("id")
    return "method" in message and (
        isinstance(request_id, int) or (isinstance(request_id, str) and len(request_id) <= _LONGEST_ID)
    )


def id_of(message: Mapping[str, Any]) -> int | None:
    """Return the id of the answered request, even if the server sends it as text or float."""
    request_id = message.get("id")
    if isinstance(request_id, str) and request_id.isascii() and request_id.isdigit() and len(request_id) < 20:
        return int(request_id)
    if isinstance(request_id, float) and request_id.is_integer():
        return int(request_id)
    return request_id if isinstance(request_id, int) and not isinstance(request_id, bool) else None


def is_answer(message: Mapping[str, Any], number: int) -> bool:
    """Return True if a message is the reply to request `number` on a connection of that request alone.

    Servers answer an unreadable request with a null id, or with an error under an id of their choice.
    """
    if "method" in message or not ("result" in message or "error" in message):
        return False
    answered = id_of(message)
    return answered == number or (answered is None and (message.get("error") is not None or message.get("id") is None))


def result_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a reply.

    Raises:
        RpcError: the reply is an error, or its result is no object.
    """
    error = message.get("error")
    if error is not None:
        raise RpcError(error if isinstance(error, Mapping) else {"message": str(error)})
    result = message.get("result")
    if result is not None and not isinstance(result, dict):
        raise RpcError({"message": f"the result is a {type(result).__name__}, expected an object"})
    return result or {}


def header_value(text: str) -> str:
    """Return `text` for an HTTP header: unchanged, or in MCP's base64 form."""
    if _PLAIN.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def is_header_token(value: object) -> bool:
    """Return True for a text allowed in the name of an HTTP header."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def is_header_text(value: object) -> TypeGuard[str]:
    """Return True for a text allowed as an HTTP header value."""
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def mirrored(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the `Mcp-Param-*` headers of a stateless call, from arguments marked with `x-mcp-header` in the schema."""
    mirrored_headers: dict[str, str] = {}
    properties = schema.get("properties")
    for name, property_schema in properties.items() if isinstance(properties, dict) else ():
        value = arguments.get(name)
        if not isinstance(property_schema, dict) or value is None:
            continue
        if isinstance(value, Mapping):
            mirrored_headers |= mirrored(property_schema, value)
        elif is_header_token(token := property_schema.get("x-mcp-header")) and isinstance(value, (str, bool, int)):
            mirrored_headers[f"Mcp-Param-{token}"] = header_value(
                str(value).lower() if isinstance(value, bool) else str(value)
            )
    return mirrored_headers


class EventStream:
    """Splits a server-sent event stream into (event, data) as bytes arrive.

    Lines end in LF, CRLF or CR.
    """

    def __init__(self) -> None:
        self._unfinished_line: list[bytes] = []
        """Pieces of the line still unfinished."""
        self._after_cr = False
        self._has_begun = False
        self._event, self._data_lines = "", list[str]()

    def take(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        """Yield the events completed by `chunk`."""
        if self._after_cr and chunk.startswith(b"\n"):  # the second half of a CRLF
            chunk = chunk[1:]
        if not chunk:
            return
        self._after_cr = chunk.endswith(b"\r")
        if _LINE_END.search(chunk) is None:
            self._unfinished_line.append(chunk)
            return
        *lines, unfinished = _LINE_END.split(b"".join((*self._unfinished_line, chunk)))
        self._unfinished_line = [unfinished]
        for line in lines:
            if line or self._data_lines:
                yield from self._read_line(line)
            else:
                self._event, self._has_begun = "", True

    def finish(self) -> Iterator[tuple[str, str]]:
        """Yield the event completed by the end of the stream, if the server sent no final empty line."""
        yield from self._read_line(b"".join(self._unfinished_line))
        self._unfinished_line = []
        yield from self._read_line(b"")

    def _read_line(self, raw: bytes) -> Iterator[tuple[str, str]]:
        """Process one line of the stream. An empty line completes an event, which is yielded as (event, data).

        Fields other than `data` and `event`, and comments, are ignored.
        """
        line = raw.decode("utf-8", "replace")
        if not self._has_begun:
            self._has_begun, line = True, line.removeprefix("\ufeff")  # a byte order mark may precede the stream
        if not line:
            if self._data_lines:
                yield self._event or "message", "\n".join(self._data_lines)
            self._event, self._data_lines = "", []
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data_lines.append(value)
        elif name == "event":
            self._event = value
