"""RemoteSglang: the native route of an SGLang server (0.5.23), `POST /generate`.

Exact ids in, exact ids and one logprob a token out: that of the distribution sampled from at its temperature, but
before top_p and top_k cut off what they do; with SGLANG_RETURN_ORIGINAL_LOGPROB=1 the one at temperature 1. So a draw
that is cut is refused. An id that the model does not know ends such a server: no request with one is sent.
"""

from __future__ import annotations

from typing import Any

import httpx

from ajet.engine.contract import TokenRequest
from ajet.engine.remote import RemoteEngine
from ajet.engine.sglang.remote_reply import Reply, body_of, scored
from ajet.engine.sglang.server_weights import NAME, SglangWeights
from ajet.schema.bounded_json import load_json

ROUTE = "/generate"


class SglangWire:
    """See `Wire`."""

    kind = "SGLang"
    expected = "the URL of `sglang serve --model-path MODEL` (0.5.23 or newer), and its key in the environment"
    says_sampled_by = "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
    says_cut = False
    route = ROUTE
    name_route = NAME

    def longest(self, client: httpx.Client, served: dict[str, Any]) -> int:
        """See `Wire`; less than its context: it keeps some of that for itself."""
        return int(load_json(client.get("/server_info").raise_for_status().content)["max_req_input_len"]) - 1

    def body(self, request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
        """See `Wire`."""
        return body_of(request, limit, salt)

    def score_body(self, ids: list[int], first: int, salt: str) -> dict[str, Any]:
        """See `Wire`."""
        return {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": first - 1,
            "extra_key": salt,
            "stream": False,
        }

    def scored(self, answer: dict[str, Any], ids: list[int]) -> list[float]:
        """See `Wire`."""
        return scored(answer, ids)

    def drawn(self, answer: dict[str, Any]) -> tuple[list[int], list[float]]:
        """See `Wire`."""
        rows = answer["meta_info"]["output_token_logprobs"]
        return [int(row[1]) for row in rows], [float(row[0]) for row in rows]

    def reply(self, request: TokenRequest, version: int) -> Reply:
        """See `Wire`."""
        return Reply(request, version)

    def weights(self, base_url: str, headers: dict[str, str]) -> SglangWeights:
        """See `Wire`."""
        return SglangWeights(base_url, headers)


class RemoteSglang(RemoteEngine):
    """An SGLang server."""

    def __init__(self, base_url: str, **more: Any) -> None:
        """`more`: see RemoteEngine."""
        super().__init__(SglangWire(), base_url, **more)
