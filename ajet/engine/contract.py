"""The two engine interfaces, TokenEngine and ChatEngine (DESIGN decision 3).

`TokenEngine` takes token ids and returns ids, logprobs and policy versions. Training samples from it. `ChatEngine`
takes and returns messages, for debugging, evaluation and judges, and its replies are never trained on.

Invariant of a TokenEngine: the concatenated chunks are exactly the sampled ids, including a sampled end token. Closing
the iterator early frees the slot. A chunk's version is the policy step of the weights that sampled it. `logprobs`
belong to the sampled distribution, `logprobs_unit` to temperature 1 without truncation. One test suite in
tests/contract runs against every implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Ids
from ajet.schema.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. `temperature` 0 is greedy; `top_k` -1 and `top_p` 1 do not truncate."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_ids: tuple[int, ...] = ()
    """Token ids that end generation; the stop id is part of the reply."""
    top_logprobs: int = 0
    """Number of alternatives to report per token."""
    seed: int | None = None
    """A client's seed, outside training: equal requests with equal seeds get equal replies. Used by
    `TokenRequest.draws`."""
    json_schema: str | None = None
    """JSON text of a schema that constrains the reply; only for engines with `TokenEngine.constrains`."""

    @property
    def is_plain(self) -> bool:
        """True if tokens are drawn from the model's own distribution: at temperature 1, without top-k and top-p."""
        return self.temperature == 1.0 and self.top_p >= 1.0 and self.top_k <= 0


class DrawKey(NamedTuple):
    """Key of one call's random numbers.

    A counter-based generator with key (seed, task, repeat, call, p) samples the token at position p, independent of
    concurrent calls.
    """

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
    """Images of the prompt's image tokens, in order, as data: URLs. Empty for a text model."""
    adapter: str | None = None
    """Name of the adapter to sample with; None for the base model. Only for engines opened with adapters."""

    @property
    def draws(self) -> DrawKey:
        """Key of the random numbers: `key`, or only the client's seed if set."""
        return self.key if self.sampling.seed is None else DrawKey(self.sampling.seed, 0, 0, 0)


@dataclass(slots=True)
class TokenChunk:
    """A few further tokens of a streamed reply. Only the last chunk has `finish` set."""

    ids: list[int]
    logprobs: list[float]
    logprobs_unit: list[float]
    version: int
    finish: Literal["stop", "length"] | None = None
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    """Per token, (id, logprob at temperature 1) of the most likely tokens, if requested."""
    newest: int | None = None
    """Newest version in the chunk if the weights changed within it; `version` is then the oldest."""
    routed_experts: npt.NDArray[np.integer[Any]] | None = None
    """[P + R - 1, layers, experts per token], experts of all tokens but the last; in a last chunk, if reported."""


@runtime_checkable
class TokenEngine(Protocol):
    """Samples tokens. `generate` may be called thousands of times in parallel, from any event loop."""

    @property
    def constrains(self) -> bool:
        """True if the engine honours `Sampling.json_schema`. Other engines must not get a schema."""
        ...

    @property
    def version(self) -> int:
        """Policy step of the current weights."""
        ...

    @property
    def max_model_len(self) -> int:
        """Maximum length of prompt plus reply, in tokens."""
        ...

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream one reply.

        Raises:
            EngineFailure: the engine died or refused the request.
        """
        ...

    def weights_changed(self, version: int) -> None:
        """Wait until no forward pass uses old weights, drop their caches, and stamp further tokens with `version`.

        Raises:
            ValueError: `version` is older than the current one.
        """
        ...

    def close(self) -> None:
        """Close the engine. Running calls fail with EngineFailure. Idempotent."""
        ...


class PausableEngine(TokenEngine, Protocol):
    """A TokenEngine that can pause while a trainer in the same process updates the weights."""

    def paused(self) -> AbstractContextManager[None]:
        """Within the block, no forward pass runs and calls wait."""
        ...

    def greedy(self, prompt_ids: Ids, count: int, adapter: str | None = None) -> tuple[list[int], list[float]]:
        """Return the `count` most likely tokens after the prompt and their logprobs at temperature 1.

        Other calls are not affected.
        """
        ...


@runtime_checkable
class ChatEngine(Protocol):
    """Answers OpenAI Chat Completions requests with OpenAI responses (dicts, as on the wire)."""

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return one complete reply.

        Raises:
            EngineFailure: the engine died or refused the request.
        """
        ...

    def stream(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Stream one reply as chunks (`chat.completion.chunk`)."""
        ...

    def close(self) -> None:
        """Release all connections. Further calls have no effect."""
        ...


def compute_reply_limit(request: TokenRequest, *, max_model_len: int, vocabulary: int) -> int:
    """Return the maximum number of reply tokens: the request's limit or the rest of the context, whichever is smaller.

    Raises:
        EngineFailure: the prompt is empty, too long or outside of the vocabulary, or no token is requested.
    """
    ids = request.prompt_ids
    free_tokens = max_model_len - len(ids)
    problem = ""
    if not len(ids):
        problem = "the prompt is empty"
    elif int(np.min(ids)) < 0 or int(np.max(ids)) >= vocabulary:
        invalid_id = ids[(ids < 0) | (ids >= vocabulary)][0]
        problem = f"the prompt has the token id {invalid_id}, beyond the model's vocabulary of {vocabulary}"
    elif free_tokens <= 0:
        problem = f"the prompt has {len(ids)} tokens, but the model's context is {max_model_len} tokens long"
    elif request.sampling.max_tokens <= 0:
        problem = "max_tokens must be at least 1"
    if problem:
        raise EngineFailure(problem, retryable=False)
    return min(request.sampling.max_tokens, free_tokens)


class EngineWrapper(TokenEngine):
    """Base class of engines that wrap another engine."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine

    @property
    def constrains(self) -> bool:
        """Same as the inner engine's `constrains`."""
        return self._engine.constrains

    @property
    def version(self) -> int:
        """Same as the inner engine's `version`."""
        return self._engine.version

    @property
    def max_model_len(self) -> int:
        """Same as the inner engine's `max_model_len`."""
        return self._engine.max_model_len

    def weights_changed(self, version: int) -> None:
        """Pass the new version to the inner engine."""
        self._engine.weights_changed(version)

    def close(self) -> None:
        """Close the inner engine and its resources."""
        self._engine.close()
