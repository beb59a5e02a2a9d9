"""StreamedReply: what the readers of servers' streams have in common, whatever an event looks like.

Invariant: each id is held to the one that its logprob names; a stream that ends before its finish, or whose finish is
none of ours, is a failure, not a short reply.
"""

from __future__ import annotations

from typing import Any, Literal

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.schema.errors import EngineFailure


class StreamedReply:
    """The chunks of one streamed reply."""

    def __init__(self, request: TokenRequest, version: int) -> None:
        self._greedy = request.sampling.temperature == 0.0
        self._top = request.sampling.top_logprobs
        self._version = version
        self._tokens = 0
        """Read so far."""
        self._finish: Literal["stop", "length"] | None = None

    def read(self, event: dict[str, Any]) -> TokenChunk | None:
        """See `wire.Reply`."""
        try:
            return self._read(event)
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            raise EngineFailure(f"the server sent an event that is not of this route: {str(event)[:200]}") from problem

    def end(self) -> TokenChunk:
        """See `wire.Reply`."""
        if self._finish is None:
            raise EngineFailure(f"the server broke off after {self._tokens} tokens")
        return TokenChunk([], [], [], self._version, self._finish)

    def _read(self, event: dict[str, Any]) -> TokenChunk | None:
        """The tokens of one event; what it raises besides EngineFailure says that it is none."""
        raise NotImplementedError

    def _ended(self, kind: Any, said: Any) -> None:
        """`said`: in the server's own words."""
        if kind not in ("stop", "length"):
            raise EngineFailure(f"the server ended the reply after {self._tokens} tokens: {said}")
        self._finish = kind

    def _add(self, chunk: TokenChunk, token: int, named: object, said: float, *, spelled: str | None = None) -> None:
        """A token, and what is said to be its logprob. `named`: the token that this is said of; `spelled`: how it names
        this one, if not by its id."""
        if named != (token if spelled is None else spelled):
            raise EngineFailure(f"token {self._tokens} has id {token}, its logprob is of {named}")
        logprob = min(float(said), 0.0)
        chunk.ids.append(int(token))
        chunk.logprobs.append(0.0 if self._greedy else logprob)
        chunk.logprobs_unit.append(logprob)
        self._tokens += 1
