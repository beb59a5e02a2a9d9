"""Wire: what differs between servers elsewhere: their routes, the form of a request, of a stream, of a score.

Invariant: a draw is asked for only where both of its logprobs follow from what the server says of it
(`explain_missing_logprobs`): the one that was sampled from, and the one at temperature 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from ajet.engine.contract import Sampling, TokenChunk, TokenRequest
from ajet.schema.errors import EngineFailure

if TYPE_CHECKING:
    import httpx

    from ajet.engine.server_weights import ServerWeights


class Wire(Protocol):
    """The routes and bodies by which one kind of server is asked. It holds nothing of one server."""

    kind: str
    """The server's name, for people."""
    expected: str
    """The kind of server that should be at the URL, for errors."""
    sampled_logprobs_option: str
    """The way to start such a server so that it says the logprob that was sampled from."""
    reports_truncated: bool
    """Whether that logprob knows of what top_p and top_k cut off."""
    route: str
    """The route where tokens are asked for."""
    name_route: str
    """The route where the name of its weights stands, as `weight_version`."""

    def longest(self, client: httpx.Client, served: dict[str, Any]) -> int:
        """Tokens of a prompt and its reply that can be scored; `served`: what /v1/models says. Raises KeyError,
        ValueError, httpx.HTTPError."""
        ...

    def body(self, request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
        """The JSON of a streamed request for at most `limit` tokens; `salt` keeps its cached prefixes apart."""
        ...

    def score_body(self, ids: list[int], first: int, salt: str) -> dict[str, Any]:
        """The body of a request for the logprobs of `ids[first:]` at temperature 1."""
        ...

    def scored(self, answer: dict[str, Any], ids: list[int]) -> list[float]:
        """The logprobs of `ids`, the last of what was scored. Raises EngineFailure."""
        ...

    def drawn(self, answer: dict[str, Any]) -> tuple[list[int], list[float]]:
        """The tokens of a reply that was not streamed, at least one, and what are said to be their logprobs. Raises
        KeyError, IndexError, TypeError, ValueError."""
        ...

    def reply(self, request: TokenRequest, version: int) -> StreamedReply:
        """A reader of the request's stream."""
        ...

    def weights(self, base_url: str, headers: dict[str, str]) -> ServerWeights:
        """The weights of the server at `base_url`."""
        ...


def explain_missing_logprobs(wire: Wire, reports_sampled: bool, sampling: Sampling) -> tuple[str, str] | None:
    """Why the logprobs of such a draw cannot be had from such a server, and what to do; None: they can.
    `reports_sampled`: whether it says those that were sampled from."""
    if is_one_logprob(sampling):
        return None
    if not reports_sampled:
        by = wire.sampled_logprobs_option
        return "says logprobs at temperature 1 only", f"{by}, or set rollout.temperature: 1.0 and no top_p or top_k"
    if truncates(sampling) and not wire.reports_truncated:
        return "says logprobs before top_p and top_k cut", "leave top_p and top_k out"
    return None


def is_one_logprob(sampling: Sampling) -> bool:
    """Whether the logprob sampled from and the one at temperature 1 follow from the same number."""
    plain = sampling.temperature == 1.0 and sampling.top_p >= 1.0 and sampling.top_k <= 0
    return sampling.json_schema is None and (plain or sampling.temperature == 0.0)


def truncates(sampling: Sampling) -> bool:
    """Whether the sampling leaves some tokens out altogether."""
    return sampling.temperature != 0.0 and (sampling.top_p < 1.0 or sampling.top_k > 0)


class StreamedReply:
    """Reads the events of one stream.

    Invariant: each id is held to the one that its logprob names; a stream that ends before its finish, or whose finish
    is none of ours, is a failure, not a short reply.
    """

    def __init__(self, request: TokenRequest, version: int) -> None:
        self._greedy = request.sampling.temperature == 0.0
        self._top = request.sampling.top_logprobs
        self._version = version
        self._tokens = 0
        """Read so far."""
        self._finish: Literal["stop", "length"] | None = None

    def read(self, event: dict[str, Any]) -> TokenChunk | None:
        """The tokens of one event, if it has some. Raises EngineFailure."""
        try:
            return self._read_event(event)
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            raise EngineFailure(f"the server sent an event that is not of this route: {str(event)[:200]}") from problem

    def end(self) -> TokenChunk:
        """The last chunk, without tokens. Raises EngineFailure where the stream ended too early or lost tokens."""
        if self._finish is None:
            raise EngineFailure(f"the server broke off after {self._tokens} tokens")
        return TokenChunk([], [], [], self._version, self._finish)

    def _read_event(self, event: dict[str, Any]) -> TokenChunk | None:
        """The tokens of one event; what it raises besides EngineFailure says that it is none."""
        raise NotImplementedError

    def _set_finish(self, kind: Any, reason: Any) -> None:
        """`said`: in the server's own words."""
        if kind not in ("stop", "length"):
            raise EngineFailure(f"the server ended the reply after {self._tokens} tokens: {reason}")
        self._finish = kind

    def _add_token(self, chunk: TokenChunk, token: int, named: object, logprob_value: float) -> None:
        """Add a token to a chunk. Raises EngineFailure if its log-probability is of another token, `named`."""
        if named != token:
            raise EngineFailure(f"token {self._tokens} has id {token}, its logprob is of {named}")
        logprob = min(float(logprob_value), 0.0)
        chunk.ids.append(int(token))
        chunk.logprobs.append(0.0 if self._greedy else logprob)
        chunk.logprobs_unit.append(logprob)
        self._tokens += 1
