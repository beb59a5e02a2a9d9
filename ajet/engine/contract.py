"""The two engine contracts (DESIGN decision 3).

`TokenEngine`: ids in; ids, logprobs and versions out. What training samples from.
`ChatEngine`: messages in, message out. For debug, evaluation and debug models; its replies are never trained on.

Invariants a TokenEngine keeps: chunks concatenated are exactly the sampled ids, the end token included when it was
sampled; closing the iterator early frees the slot; a chunk's version is the policy step whose weights sampled it;
`logprobs` are of the distribution sampled from and `logprobs_unit` at temperature 1 without truncation. One suite in
tests/contract runs against every implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ajet.schema.call import Ids
from ajet.schema.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` -1 and `top_p` 1 do not truncate."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_ids: tuple[int, ...] = ()
    """Generation ends after any of these; the stop id is part of the reply."""
    top_logprobs: int = 0
    """How many alternatives a token to report, for clients that ask."""
    seed: int | None = None
    """A client's, where nothing trains: equal requests with equal seeds get equal replies. See `TokenRequest.draws`."""
    json_schema: str | None = None
    """JSON text of a schema that the reply is held to while it is drawn; set only for engines that can
    (`TokenEngine.constrains`)."""


class DrawKey(NamedTuple):
    """Names the random numbers of one call: the token at position p of the reply is drawn with a counter-based
    generator keyed (seed, task, repeat, call, p), whatever else runs beside it."""

    seed: int
    task: int
    repeat: int
    call: int


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request for one reply after `prompt_ids` [P]."""

    prompt_ids: Ids
    sampling: Sampling
    key: DrawKey
    images: tuple[str, ...] = ()
    """Those that the prompt's image tokens stand for, in order, as data: URLs. Empty for a text model."""
    adapter: str | None = None
    """Which of the model's several adapters samples it; None: the model as the engine was given it. Set only for
    engines that were opened with such."""

    @property
    def draws(self) -> DrawKey:
        """The name of the request's random numbers: `key`, or a client's seed alone."""
        return self.key if self.sampling.seed is None else DrawKey(self.sampling.seed, 0, 0, 0)


@dataclass(slots=True)
class TokenChunk:
    """Some more tokens of a reply; the last chunk, and only it, has `finish` set."""

    ids: list[int]
    logprobs: list[float]
    logprobs_unit: list[float]
    version: int
    finish: Literal["stop", "length"] | None = None
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    """Per token, (id, logprob at temperature 1) of the most likely ones, if asked for."""
    newest: int | None = None
    """Where the engine went on with newer weights somewhere within the chunk: theirs. `version` is then the oldest."""


@runtime_checkable
class TokenEngine(Protocol):
    """Samples tokens. `generate` may be called from any event loop, thousands at a time."""

    @property
    def constrains(self) -> bool:
        """True: it honours `Sampling.json_schema`. False: it must not be given one."""
        ...

    @property
    def version(self) -> int:
        """Policy step whose weights sample now."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt + reply, in tokens."""
        ...

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream one reply. Raises EngineFailure when the engine dies or refuses."""
        ...

    def weights_changed(self, version: int) -> None:
        """Blocks until no forward pass runs on the old weights; then drops caches made with them and answers with
        `version` from the next token on. Raises ValueError when `version` is older than the present one."""
        ...

    def close(self) -> None:
        """End it; running calls fail with EngineFailure. Idempotent."""
        ...


@runtime_checkable
class ChatEngine(Protocol):
    """Answers an OpenAI Chat Completions request with such a reply (dicts, as on the wire)."""

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sample one reply, whole. Raises EngineFailure."""
        ...

    def stream(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Sample one reply, as chunks (`chat.completion.chunk`)."""
        ...

    def close(self) -> None:
        """Release connections. Idempotent."""
        ...


def compute_reply_limit(request: TokenRequest, *, max_model_len: int, vocabulary: int) -> int:
    """Tokens the reply may have: its own bound, or what the context leaves. Raises EngineFailure."""
    ids = request.prompt_ids
    room = max_model_len - len(ids)
    problem = ""
    if not len(ids):
        problem = "the prompt is empty"
    elif int(np.min(ids)) < 0 or int(np.max(ids)) >= vocabulary:
        wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
        problem = f"the prompt has the token id {wrong}, beyond the model's vocabulary of {vocabulary}"
    elif room <= 0:
        problem = f"the prompt has {len(ids)} tokens, the context {max_model_len}"
    elif request.sampling.max_tokens <= 0:
        problem = "max_tokens must be at least 1"
    if problem:
        raise EngineFailure(problem, retryable=False)
    return min(request.sampling.max_tokens, room)


class EngineWrapper:
    """The part that engines around another one share."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine

    @property
    def constrains(self) -> bool:
        """The inner engine's."""
        return self._engine.constrains

    @property
    def version(self) -> int:
        """The inner engine's."""
        return self._engine.version

    @property
    def max_model_len(self) -> int:
        """The inner engine's."""
        return self._engine.max_model_len
