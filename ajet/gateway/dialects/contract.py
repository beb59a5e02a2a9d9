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

    def begin_reply(self, choice: int) -> bytes:
        """Return the events before the first part of a reply. `choice` is the reply's number, from 0."""
        ...

    def write_chunk(self, choice: int, chunk: ReplyChunk) -> bytes:
        """Return the events of the next part of a reply."""
        ...

    def end_reply(self, choice: int, reply: Reply) -> bytes:
        """Return the events of a reply's end, such as the finish reason."""
        ...

    def close(self, replies: Sequence[Reply]) -> bytes:
        """Return the events after all replies, such as usage and the final mark."""
        ...

    def fail(self, refused: Refused) -> bytes:
        """Return the events of an error in a stream that has begun."""
        ...


class Dialect(Protocol):
    """Parses the requests and formats the answers of one client protocol."""

    path: str

    def parse(self, body: Mapping[str, Any], caller: Caller) -> ParsedRequest:
        """Parse the JSON body of a request. Raises Refused for a field that cannot be honoured."""
        ...

    def format_reply(self, request: ParsedRequest, replies: Sequence[Reply]) -> dict[str, Any]:
        """Return the JSON body of the answer with all complete replies of a request."""
        ...

    def build_writer(self, request: ParsedRequest) -> StreamWriter:
        """Return the writer of a streamed answer."""
        ...

    def format_error(self, refused: Refused, request_id: str) -> dict[str, Any]:
        """Return the JSON body of an error in the protocol's form."""
        ...
