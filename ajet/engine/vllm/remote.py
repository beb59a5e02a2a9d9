"""RemoteVllm: the token-in-token-out route of `vllm serve` (0.28), `POST /inference/v1/generate`.

Exact ids in, exact ids and one logprob a token out: with `--logprobs-mode processed_logprobs` that of the distribution
sampled from, with `raw_logprobs` (the default) the one at temperature 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from ajet.engine.contract import TokenRequest
from ajet.engine.remote import RemoteEngine
from ajet.engine.server_weights import ServerWeights
from ajet.engine.vllm.remote_reply import Reply, body_of, scored

ROUTE = "/inference/v1/generate"


NAME_ROUTE = "/weight_info"
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"


class VllmWeights(ServerWeights):
    """The weights of a vLLM server: what it says of them, and how it is given others.

    A server that was started with `VLLM_SERVER_DEV_MODE=1` has a name for its weights (`GET /weight_info`, which is set
    by whoever changes them) and loads a checkpoint folder that lies on its machine (`POST /collective_rpc`,
    reload_weights). One without has neither, and its weights stay the same until it is restarted. A load and its name
    are two requests: a stop between them is noticed after.
    """

    kind = "vLLM"
    expected = f"a server of vLLM 0.28, started with {DEV_MODE} where its weights are to be changed"
    cannot = DEV_MODE

    def name(self) -> str | None:
        """See `ServerWeights`."""
        answer = self._asked("GET", NAME_ROUTE)
        return None if answer.status_code == 404 else str(self._fine(answer).get("weight_version"))

    def _load(self, folder: Path, name: str) -> str:
        reload: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._fine(self._asked("POST", "/collective_rpc", reload), f"to load {folder}, which must lie there too")
        self._fine(self._asked("POST", "/reset_prefix_cache"))
        return str(self.name())


class VllmWire:
    """See `Wire`."""

    kind = "vLLM"
    expected = "the URL of `vllm serve MODEL` (0.28 or newer), and its key in the environment if it has one"
    says_sampled_by = "start it with --logprobs-mode processed_logprobs"
    says_cut = True
    route = ROUTE
    name_route = NAME_ROUTE

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
