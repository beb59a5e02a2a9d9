"""Dialect: what the HTTP side needs to know of a client's language.

Invariant: `read` either honours a field, or knows it harmless, or raises `Refused` with its name. The HTTP side does
keys, bodies, disconnects and status codes; the session does the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.gateway.turn import Piece, Refused, Turn, TurnRequest


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, by the key, the headers or the model's suffix."""

    agent: str
    target: str = ""
    debug_model: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    """The session's: what a dialect must remember from one request to the next, by the dialect's own names. It is
    written on the gateway's loop only, read by `read` on a thread too, and dies with the session."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read. `turns` are independent replies to give (OpenAI's `n`)."""

    turns: Sequence[TurnRequest]
    stream: bool
    options: Any = None
    """The dialect's own, for its replies."""
    checks: Sequence[TurnRequest] = ()
    """Turns that must all be possible before any is made: the first of each prompt, where there are several."""
    count: Callable[[int], dict[str, Any]] | None = None
    """Nothing is to be sampled: this makes the answer, of the number of tokens in the prompt of `turns[0]`."""


class Writer(Protocol):
    """Writes one streamed reply as server-sent events."""

    def start(self, choice: int) -> bytes: ...

    def piece(self, choice: int, piece: Piece) -> bytes: ...

    def end(self, choice: int, turn: Turn) -> bytes: ...

    def close(self, turns: Sequence[Turn]) -> bytes: ...

    def error(self, refused: Refused) -> bytes: ...


class Dialect(Protocol):
    """The reading and writing of one client protocol."""

    path: str

    def read(self, body: Mapping[str, Any], caller: Caller) -> Asked: ...

    def reply(self, asked: Asked, turns: Sequence[Turn]) -> dict[str, Any]: ...

    def writer(self, asked: Asked) -> Writer: ...

    def error(self, refused: Refused, request_id: str) -> dict[str, Any]: ...
