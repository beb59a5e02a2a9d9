"""Dialect: the interface between the HTTP side and a client protocol.

Invariant: `parse` honours a field, ignores a harmless field, or raises `Refused` with the field's name. The HTTP side
handles keys, bodies, disconnects and status codes; the session makes the replies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.gateway.reply import Reply, ReplyChunk
from ajet.gateway.request import ParsedRequest, Refused


@dataclass(slots=True)
class Caller:
    """The agent that sent a request, named by the key, the headers or the suffix of the model's name."""

    agent: str
    target: str = ""
    debug_model: str | None = None
    dialect_state: dict[str, Any] = field(default_factory=dict)
    """State of the dialects between requests of a session, by the dialect's own names.

    It is written on the gateway's loop only, read by `parse` also on a thread, and deleted with the session."""


class StreamWriter(Protocol):
    """Writes the replies to one request as server-sent events."""

    def begin_reply(self, choice: int) -> bytes: ...

    def write_chunk(self, choice: int, chunk: ReplyChunk) -> bytes: ...

    def end_reply(self, choice: int, reply: Reply) -> bytes: ...

    def close(self, replies: Sequence[Reply]) -> bytes: ...

    def fail(self, refused: Refused) -> bytes: ...


class Dialect(Protocol):
    """Parses the requests and formats the answers of one client protocol."""

    path: str

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest: ...

    def format_reply(self, request: ParsedRequest, replies: Sequence[Reply]) -> dict[str, Any]: ...

    def build_writer(self, request: ParsedRequest) -> StreamWriter: ...

    def format_error(self, refused: Refused, request_id: str) -> dict[str, Any]: ...
