"""RemoteVllm: the token-in-token-out route of `vllm serve` (0.28), `POST /inference/v1/generate`.

Exact ids in, exact ids and one logprob a token out: with `--logprobs-mode processed_logprobs` that of the distribution
sampled from, with `raw_logprobs` (the default) the one at temperature 1.
"""

from __future__ import annotations

from typing import Any

import httpx

from ajet.engine.contract import TokenRequest
from ajet.engine.remote import RemoteEngine
from ajet.engine.vllm.remote_reply import Reply, body_of, scored
from ajet.engine.vllm.server_weights import NAME, VllmWeights

ROUTE = "/inference/v1/generate"


class VllmWire:
    """See `Wire`."""

    kind = "vLLM"
    expected = "the URL of `vllm serve MODEL` (0.28 or newer), and its key in the environment if it has one"
    says_sampled_by = "start it with --logprobs-mode processed_logprobs"
    says_cut = True
    route = ROUTE
    name_route = NAME

    def longest(self, client: httpx.Client, served: dict[str, Any]) -> int:
        """See `Wire`."""
        return int(served.get("max_model_len") or 1 << 30)

    def body(self, request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
        """See `Wire`."""
        return body_of(request, limit, salt)

    def score_body(self, ids: list[int], first: int, salt: str) -> dict[str, Any]:
        """See `Wire`; of the whole prompt, the only way there is."""
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        return {"token_ids": ids, "sampling_params": params, "stream": False, "cache_salt": salt}

    def scored(self, answer: dict[str, Any], ids: list[int]) -> list[float]:
        """See `Wire`."""
        return scored(answer, ids)

    def drawn(self, answer: dict[str, Any]) -> tuple[list[int], list[float]]:
        """See `Wire`."""
        choice = answer["choices"][0]
        said = [float(each["logprob"]) for each in choice["logprobs"]["content"]]
        return [int(token) for token in choice["token_ids"]], said

    def reply(self, request: TokenRequest, version: int) -> Reply:
        """See `Wire`."""
        return Reply(request, version)

    def weights(self, base_url: str, headers: dict[str, str]) -> VllmWeights:
        """See `Wire`."""
        return VllmWeights(base_url, headers)


class RemoteVllm(RemoteEngine):
    """A vLLM server."""

    def __init__(self, base_url: str, **more: Any) -> None:
        """`more`: see RemoteEngine."""
        super().__init__(VllmWire(), base_url, **more)
