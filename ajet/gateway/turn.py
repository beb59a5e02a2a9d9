"""Turn: one request to a model and its reply, free of any client's dialect.

Invariant: everything that a dialect may ask for is a field here, and the session honours it or raises `Refused` with
the field's name; nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ajet.schema.call import FinishReason
from ajet.schema.errors import AjetError
from ajet.tokens.parsing import Delta


class Refused(AjetError):
    """A request that gets an error for an answer: an HTTP status, a code that programs can tell, the field at fault,
    and after how many seconds to try again (None: not said). `final`: clients are told not to try again by
    themselves."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.code, self.param = message, status, code, param
        self.retry_after, self.final = retry_after, final

    def within(self, part: str) -> Refused:
        """This refusal, as one of a part of the request."""
        return Refused(
            f"{part}: {self.message}",
            status=self.status,
            code=self.code,
            param=self.param,
            retry_after=self.retry_after,
            final=self.final,
        )


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a client asks of the model, as one reply.

    `messages` and `tools` have OpenAI's shape, checked, with contents as strings, or as lists of parts where there are
    images. None: not asked for.
    """

    agent: str
    messages: Sequence[dict[str, Any]]
    """Empty only where there is a `prompt`."""
    images: tuple[str, ...] = ()
    """Where the client's request has images, in its dialect's words."""
    prompt: str | Sequence[int] | None = None
    """A text or ids to go on from, in place of messages: no chat template, and the reply is not parsed."""
    target: str = ""
    """Target tag; empty: the agent's name."""
    debug_model: str | None = None
    tools: Sequence[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required", "named"] = "auto"
    named_tool: str | None = None
    parallel_tool_calls: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    counts_tokens: bool = True
    """The reply says how many tokens were used."""
    json_schema: Mapping[str, Any] | None = None
    """The reply must be JSON that this schema admits; {} admits any JSON object."""
    passed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that only a chat engine can honour, by their name on the wire."""
    asides: Mapping[str, Any] = field(default_factory=dict)
    """Fields that ask nothing of the reply, by their name on the wire; they reach no engine."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For people: goes into the call's `extra`."""


def refuse_images(request: TurnRequest) -> None:
    """Raises Refused for a request with images: a text model cannot be shown them."""
    if request.images:
        raise Refused(
            f"Unsupported value for '{request.images[0]}': this is a text model, it cannot take images.",
            param=request.images[0],
            code="unsupported_value",
        )


def choices(request: TurnRequest, count: int) -> list[TurnRequest]:
    """`count` independent replies to one request (OpenAI's `n`); a seed counts up with them."""
    seed = request.passed.get("seed")
    if seed is None:
        return [request] * count
    return [replace(request, passed={**request.passed, "seed": seed + choice}) for choice in range(count)]


@dataclass(slots=True)
class Piece:
    """Some more of a reply, for streaming. `ids`, `logprobs` (temperature 1) and `top` align; they may outrun or trail
    `deltas`, which wait for tags and characters to be whole."""

    deltas: list[Delta]
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    top: Sequence[list[tuple[int, float]]] = ()
    prompt_tokens: int = 0
    """Of the prompt that this continues; 0 where no tokens are known."""


OnPiece = Callable[[Piece], None]


@dataclass(slots=True)
class Turn:
    """The reply. `message` has OpenAI's shape, tool calls with ids."""

    call: int
    message: dict[str, Any]
    finish: FinishReason
    prompt_tokens: int | None
    """None, as for `completion_tokens`: a chat engine's server did not count them."""
    completion_tokens: int | None
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    """[R] at temperature 1."""
    top: Sequence[list[tuple[int, float]]] = ()
    stopped: str | None = None
    """The stop string that ended it."""
