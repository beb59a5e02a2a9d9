"""Wire: the differences between kinds of remote servers: routes, request bodies, streams and scores.

Invariant: a sample is requested only if both of its logprobs (as sampled, and at temperature 1) follow from the
server's response (`explain_missing_logprobs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from ajet.engine.contract import Sampling, TokenChunk, TokenRequest
from ajet.schema.errors import EngineFailure

if TYPE_CHECKING:
    import httpx

    from ajet_vllm.server_weights import ServerWeights


class Wire(Protocol):
    """Routes and bodies of one kind of server, without state of a single server."""

    kind: str
    """Display name of the server's kind."""
    expected: str
    """Expected server at the URL, for error messages."""
    sampled_logprobs_option: str
    """Start option that makes the server report logprobs of the sampled distribution."""
    reports_truncated: bool
    """True if reported logprobs include truncation by top_p and top_k."""
    route: str
    """Route of generate requests."""
    name_route: str
    """Route with the name of the weights, in `weight_version`."""
    version_route: str
    """Route with the server's `version`."""
    tested_versions: str
    """Versions of the server that ajet is tested with, as a version specifier."""

    @property
    def reply(self) -> type[StreamedReply]:
        """The reader of a request's stream."""
        ...

    @property
    def weights(self) -> type[ServerWeights]:
        """The client for a server's weights."""
        ...

    def find_max_length(self, client: httpx.Client, served: dict[str, Any]) -> int:
        """Return the maximum number of tokens of prompt plus reply that can be scored.

        Args:
            served: the served model's entry in `/v1/models`.

        Raises:
            KeyError, ValueError, httpx.HTTPError: the response is invalid.
        """
        ...

    def build_body(self, request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
        """Build the JSON body of a request for a streamed reply.

        Args:
            limit: maximum number of tokens to sample.
            salt: cached prefixes are shared only between requests with the same salt.
        """
        ...

    def build_score_body(self, ids: list[int], first: int, salt: str) -> dict[str, Any]:
        """Build the JSON body of a request for the logprobs of `ids[first:]` at temperature 1.

        Args:
            ids: token ids of a text.
            salt: cached prefixes are shared only between requests with the same salt.
        """
        ...

    def parse_scores(self, answer: dict[str, Any], ids: list[int]) -> list[float]:
        """Return the logprobs at temperature 1 of `ids`, the last tokens of a scored text, from the response.

        Raises:
            EngineFailure: the scores are missing or belong to other ids.
        """
        ...

    def parse_drawn(self, answer: dict[str, Any]) -> tuple[list[int], list[float]]:
        """Return the sampled token ids, at least one, and their reported logprobs from a response without streaming.

        Raises:
            KeyError, IndexError, TypeError, ValueError: the response is invalid.
        """
        ...


def explain_missing_logprobs(wire: Wire, reports_sampled: bool, sampling: Sampling) -> tuple[str, str] | None:
    """Return (reason, remedy) if the server cannot provide both logprobs of each token, else None.

    Needed are the logprob in the distribution that the token was sampled from, and the logprob at temperature 1.

    Args:
        reports_sampled: True if the server reports logprobs of the sampled distribution.
    """
    if is_one_logprob(sampling):
        return None
    if not reports_sampled:
        option = wire.sampled_logprobs_option
        return (
            "reports log-probabilities only for temperature 1",
            f"{option}, or set rollout.temperature: 1.0 and remove top_p and top_k",
        )
    if truncates(sampling) and not wire.reports_truncated:
        return "reports log-probabilities before top_p and top_k are applied", "remove rollout.top_p and rollout.top_k"
    return None


def is_one_logprob(sampling: Sampling) -> bool:
    """True if one reported logprob gives both kinds that ajet needs: as sampled, and at temperature 1.

    Both are equal for plain sampling. For greedy sampling the first is 0. A JSON schema changes the first only.
    """
    return sampling.json_schema is None and (sampling.is_plain or sampling.temperature == 0.0)


def truncates(sampling: Sampling) -> bool:
    """True if top_p or top_k may exclude tokens from sampling. Greedy sampling uses neither."""
    return sampling.temperature != 0.0 and (sampling.top_p < 1.0 or sampling.top_k > 0)


class StreamedReply:
    """Reads the events of one streamed reply.

    Invariant: each id must match its logprob's id. A stream without a known finish is a failure, not a short reply.
    """

    def __init__(self, request: TokenRequest, version: int) -> None:
        """Start a reply to `request`, sampled by policy `version`."""
        self.weight_names: set[str] | None = None
        """The server's names for the weights that sampled the reply; None if it sends none."""
        self._prompt_tokens = len(request.prompt_ids)
        self._greedy = request.sampling.temperature == 0.0
        self._top_logprobs = request.sampling.top_logprobs
        self._version = version
        self._tokens = 0  # read so far
        self._finish: Literal["stop", "length"] | None = None

    def read(self, event: dict[str, Any]) -> TokenChunk | None:
        """Return the new tokens of one event, or None if it has none.

        Raises:
            EngineFailure: the event is invalid.
        """
        try:
            return self._read_event(event)
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            raise EngineFailure(
                f"the server sent an event that does not belong to this route: {str(event)[:200]}"
            ) from problem

    def end(self) -> TokenChunk:
        """Return the last chunk, which has the finish reason and no tokens.

        Raises:
            EngineFailure: the stream ended too early or lost tokens.
        """
        if self._finish is None:
            raise EngineFailure(f"the server broke off its reply after {self._tokens} tokens")
        return TokenChunk([], [], [], self._version, self._finish)

    def _read_event(self, event: dict[str, Any]) -> TokenChunk | None:
        """Return the new tokens of one event, or None if it has none.

        A KeyError, TypeError, ValueError or IndexError means that the event is invalid. The caller converts it.
        """
        raise NotImplementedError

    def _set_finish(self, kind: Any, reason: Any) -> None:
        """Store why the reply ended.

        Args:
            kind: "stop" or "length"; anything else is a failure.
            reason: the server's own value, for the error message.

        Raises:
            EngineFailure: the reply did not end regularly.
        """
        if kind not in ("stop", "length"):
            raise EngineFailure(f"the server ended its reply after {self._tokens} tokens: {reason}")
        self._finish = kind

    def _add_token(self, chunk: TokenChunk, token: int, logprob_token: object, logprob_value: float) -> None:
        """Add a token to a chunk.

        Args:
            token: id of the token.
            logprob_token: id to which the server's logprob belongs.

        Raises:
            EngineFailure: the two ids differ.
        """
        if logprob_token != token:
            raise EngineFailure(
                f"token {self._tokens} of the reply has the id {token}, but its log-probability belongs to id "
                f"{logprob_token}"
            )
        logprob = min(float(logprob_value), 0.0)  # rounding may give a tiny positive number
        chunk.ids.append(int(token))
        chunk.logprobs.append(0.0 if self._greedy else logprob)  # a greedy choice has probability 1
        chunk.logprobs_unit.append(logprob)
        self._tokens += 1
