"""ServerEngine: verl's inference servers as a TokenEngine.

verl's client balances over the servers of all nodes, and keeps the calls of an episode on one server to use the prefix
cache. Invariants: exact token ids in, exact ids and log-probabilities out. verl alone changes weights, and each reply
carries the training step of its weights. A reply is one chunk, since verl's client does not stream. Calls to a dead
server fail without waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ajet.engine.contract import TokenChunk, TokenRequest, compute_reply_limit
from ajet.schema.call import Ids
from ajet.schema.errors import EngineFailure
from ajet.tokens.image_tokens import ImageTokens, picture
from ajet_ray.cluster.ray_errors import make_engine_failure


class ServerEngine:
    """Samples through `client`, verl's `LLMServerClient`. Safe to use from any event loop."""

    constrains = False

    def __init__(
        self,
        client: Any,
        *,
        max_model_len: int,
        vocabulary: int,
        server: str,
        images: ImageTokens | None = None,
        routed_shape: tuple[int, int] | None = None,
    ) -> None:
        """Create the engine over verl's client.

        Args:
            server: vllm or sglang.
            images: image tokens of a vision model; None for a text model.
            routed_shape: (layers, experts per token) reported by the servers; None: they report no experts.
        """
        self.routed_shape = routed_shape
        self.version = 0
        self.max_model_len = max_model_len
        self._client = client
        self._vocabulary = vocabulary
        self._server = server
        self._images = images
        self._is_closed = False

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Sample one reply and yield it in one chunk.

        Raises:
            EngineFailure: the request cannot be answered.
        """
        limit = compute_reply_limit(request, max_model_len=self.max_model_len, vocabulary=self._vocabulary)
        if self._is_closed:
            raise EngineFailure("the engine is closed", retryable=False)
        if request.sampling.top_logprobs:
            raise EngineFailure("verl's servers return no top_logprobs", retryable=False)
        output = await self._request_tokens(request, request.prompt_ids, self._build_params(request, limit))
        ids, logprobs = list(output.token_ids), [min(value, 0.0) for value in output.log_probs or ()]
        if output.stop_reason == "aborted" or not ids:
            raise EngineFailure("verl's server aborted the request")
        if len(ids) != len(logprobs):
            raise EngineFailure(
                f"verl's server sent {len(ids)} tokens, but {len(logprobs)} log-probabilities", retryable=False
            )
        # verl names the lowest and the highest training step whose weights sampled the reply.
        policy_steps = [output.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")]
        oldest_step, newest_step = (self.version if step is None else int(step) for step in policy_steps)
        self.version = max(self.version, newest_step)
        # A reply with the maximum number of tokens may still have ended by itself, with a stop token.
        is_truncated = len(ids) >= limit and ids[-1] not in request.sampling.stop_ids
        finish: Literal["stop", "length"] = "length" if is_truncated else "stop"
        logprobs_unit = logprobs if _has_unit_logprobs(request) else await self._score_at_temperature_one(request, ids)
        logprobs = _zero_if_greedy(request, logprobs)
        experts = self._read_experts(output, len(request.prompt_ids) + len(ids) - 1)
        yield TokenChunk(ids, logprobs, logprobs_unit, oldest_step, finish, newest=newest_step, routed_experts=experts)

    def weights_changed(self, version: int) -> None:
        """Record that the servers have the weights of policy `version`.

        Raises:
            ValueError: `version` is older than the current version.
        """
        if version < self.version:
            raise ValueError(f"policy version {version} is older than the servers' version {self.version}")
        self.version = version

    def close(self) -> None:
        """Refuse all further requests. Idempotent."""
        self._is_closed = True

    def _read_experts(self, output: Any, tokens: int) -> npt.NDArray[np.integer[Any]] | None:
        """Return the experts of prompt and reply, or None if the trainer does not replay them.

        Args:
            output: the reply of verl's server.
            tokens: number of tokens of prompt and reply without the last.

        Returns:
            Integer array [tokens, layers, experts per token].
        """
        if self.routed_shape is None:
            return None
        experts, expected = output.routed_experts, (tokens, *self.routed_shape)
        if experts is None or experts.shape[1:] != self.routed_shape or len(experts) < tokens:
            sent = "none" if experts is None else f"shape {experts.shape}"
            raise EngineFailure(
                f"verl's server had to send routed experts of shape {expected} (tokens, layers, experts per token), "
                f"and sent {sent}",
                retryable=False,
            )
        return np.asarray(experts)[:tokens]

    def _build_params(self, request: TokenRequest, limit: int) -> dict[str, Any]:
        """Build the sampling parameters of verl's server for a reply of at most `limit` tokens."""
        sampling = request.sampling
        params: dict[str, Any] = {
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": list(sampling.stop_ids),
            "logprobs": True,
        }
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        if self._server == "vllm":
            # The reply's text is decoded by ajet, so the server need not.
            params["detokenize"] = False
        return params

    async def _score_at_temperature_one(self, request: TokenRequest, ids: list[int]) -> list[float]:
        """Return the log-probabilities of a sampled reply at temperature 1, one per token of the reply.

        The reply is sent as part of a prompt, and is scored with the servers' current weights.

        Args:
            ids: tokens of the reply.
        """
        from verl.workers.rollout.llm_server import LLMServerClient

        # `prompt_logprobs: 0` returns the log-probability of each prompt token without alternatives.
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "logprobs": True}
        # the client of the asynchronous modes resumes aborted replies and drops the prompt's log-probabilities
        output = await self._request_tokens(
            request, np.append(request.prompt_ids, ids), params, LLMServerClient.generate
        )
        prompt_logprobs = output.extra_fields.get("prompt_logprobs")
        if prompt_logprobs is None:
            raise EngineFailure("verl's server cannot return log-probabilities of prompts", retryable=False)
        # Row i holds the log-probability of token i + 1 of the prompt.
        first_position = len(request.prompt_ids) - 1
        return [min(float(row[0]), 0.0) for row in prompt_logprobs[first_position : first_position + len(ids)]]

    async def _request_tokens(
        self, request: TokenRequest, prompt: Ids, params: dict[str, Any], generate: Any = None
    ) -> Any:
        """Send one request to verl's servers and return verl's `TokenOutput`.

        Args:
            prompt: token ids of the prompt.
            params: the server's sampling parameters.
            generate: method of verl's client class to use instead of the client's own `generate`, or None.

        Raises:
            EngineFailure: ray reports that the server failed or died.
        """
        from ray.exceptions import RayError

        key, image_arguments = request.key, {}
        if request.images:
            assert self._images is not None, "a text model's renderer refuses images"
            # Images are decoded in a thread, so that other episodes continue meanwhile.
            pictures = [await asyncio.to_thread(picture, url) for url in request.images]
            image_arguments = {"image_data": pictures}
            if self._server == "vllm":  # vLLM's own processor expands each image to its tokens
                prompt = self._images.folded(prompt)
        try:
            send_request = self._client.generate if generate is None else partial(generate, self._client)
            return await send_request(
                f"{key.task}-{key.repeat}", prompt_ids=prompt.tolist(), sampling_params=params, **image_arguments
            )
        except RayError as error:
            raise make_engine_failure("verl's server", error) from error


def _has_unit_logprobs(request: TokenRequest) -> bool:
    """Return True if the log-probabilities of the server's reply are already those at temperature 1.

    They are for untruncated sampling at temperature 1, and for greedy sampling.
    """
    return request.sampling.is_plain or request.sampling.temperature == 0.0


def _zero_if_greedy(request: TokenRequest, logprobs: list[float]) -> list[float]:
    """Return zeros for greedy sampling, since a greedy token has probability 1."""
    return [0.0] * len(logprobs) if request.sampling.temperature == 0.0 else logprobs
