"""RemoteSglang uses the native route of an SGLang server, `POST /generate` (tested: 0.5.23).

The route takes exact ids and returns exact ids with one logprob per token, of the distribution at the sampling
temperature but before top_p and top_k. With SGLANG_RETURN_ORIGINAL_LOGPROB=1 the logprob is at temperature 1. Requests
with top_p or top_k are therefore refused. An id outside the vocabulary crashes the server, so it is never sent.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import httpx

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import EngineFailure
from ajet_vllm.remote import RemoteEngine
from ajet_vllm.server_weights import ServerWeights
from ajet_vllm.wire import StreamedReply, Wire

ROUTE = "/generate"


NAME_ROUTE = "/model_info"
INFO_ROUTE = "/server_info"


class SglangWeights(ServerWeights):
    """Reads and changes the weights of an SGLang server.

    Every server has a name for its weights (`GET /model_info`) and loads a folder on its own machine (`POST
    /update_weights_from_disk`) while no reply runs: ajet's request keeps the default `abort_all_requests`, which aborts
    running replies, and the server waits for later ones. A single request loads and names the weights; the name always
    belongs to the last load.
    """

    kind = "SGLang"
    expected = "a server of SGLang 0.5.23 or newer"
    cannot = "name for its weights"

    def name(self) -> str | None:
        """Return the server's name for its weights; SGLang always has one."""
        return str(self._parse_answer(self._send_request("GET", NAME_ROUTE)).get("weight_version"))

    def _load_folder(self, folder: Path, name: str) -> str:
        """Load the weights in a folder and name them, in one request. Return the server's name afterwards.

        Another name than `name` means that another process has loaded weights meanwhile.
        """
        load: dict[str, Any] = {"model_path": str(folder), "weight_version": name, "flush_cache": True}
        self._parse_answer(
            self._send_request("POST", "/update_weights_from_disk", load),
            f"load the folder {folder}, which must also exist on the server's machine",
        )
        return str(self.name())


PLAIN = {"min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
PLAIN |= {"min_new_tokens": 0, "n": 1}
"""Neutral sampling values, sent explicitly: a server's `--preferred-sampling-params` would override omitted ones."""
INTERVAL = 32
"""Tokens between two events after the first.

Each event contains the complete reply up to then (about 45 bytes per token): one event per token would transfer 6 GB
for a reply of 16K tokens.
"""


class SglangReply(StreamedReply):
    """Reads the events of one streamed reply of an SGLang server."""

    def _read_event(self, event: dict[str, Any]) -> TokenChunk | None:
        """Return the new tokens of one event, or None if it has none.

        Each event contains the complete reply up to then, so the tokens of earlier events are left out.
        """
        info = event["meta_info"]
        # "stop" without a token id is a stop string, and no request has one: such a reply is refused.
        if (reason := info["finish_reason"]) is not None:
            is_expected = reason["type"] != "stop" or isinstance(reason.get("matched"), int)
            self._set_finish(reason["type"] if is_expected else None, reason)
        new_count = int(info["completion_tokens"]) - self._tokens
        if new_count < 0:
            raise EngineFailure(
                f"the server streamed {self._tokens} tokens, but now counts only {self._tokens + new_count}"
            )
        return (
            self._build_chunk(event["output_ids"], info["output_token_logprobs"], info, new_count)
            if new_count
            else None
        )

    def _build_chunk(self, ids: list[int], rows: list[list[Any]], info: dict[str, Any], new_count: int) -> TokenChunk:
        """Return the new tokens of an event as a chunk.

        Args:
            ids: token ids of the reply, the new ones last.
            rows: (logprob, token id, ...) of each token, the new ones last.
            info: the event's `meta_info`, with the likeliest tokens.
            new_count: number of new tokens.

        Raises:
            EngineFailure: ids or logprobs are missing, or a logprob belongs to another token.
        """
        if len(ids) < new_count or len(rows) < new_count:
            raise EngineFailure(
                f"the server counts {new_count} new tokens, but sent {len(ids)} tokens with {len(rows)} "
                "log-probabilities"
            )
        top_rows = info["output_top_logprobs"][-new_count:] if self._top_logprobs else []
        chunk = TokenChunk([], [], [], self._version)
        for token, (logprob, logprob_token, *_) in zip(ids[-new_count:], rows[-new_count:], strict=True):
            self._add_token(chunk, token, logprob_token, logprob)
        # Tokens excluded by a schema have null as logprob, because JSON lacks infinity. They are left out.
        likeliest = [[(int(token), logprob) for logprob, token, *_ in row[: self._top_logprobs]] for row in top_rows]
        chunk.top = [[(token, float(logprob)) for token, logprob in row if logprob is not None] for row in likeliest]
        return chunk


class SglangWire(Wire):
    """SGLang's requests and responses."""

    reply = SglangReply
    weights = SglangWeights
    kind = "SGLang"
    expected = "the URL of `sglang serve --model-path MODEL` (0.5.23 or newer), and its API key in the environment"
    sampled_logprobs_option = "start the server without SGLANG_RETURN_ORIGINAL_LOGPROB"
    reports_truncated = False
    route = ROUTE
    name_route = NAME_ROUTE
    version_route = INFO_ROUTE
    tested_versions = ">=0.5.23"

    def find_max_length(self, client: httpx.Client, served: dict[str, Any]) -> int:
        """Return the longest sequence of prompt and reply that can be scored, in tokens.

        It is shorter than the model's context, because SGLang reserves some tokens.
        """
        return int(load_json(client.get(INFO_ROUTE).raise_for_status().content)["max_req_input_len"]) - 1

    def build_body(self, request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
        """Build the JSON body of a streamed generate request.

        Without stop ids the reply continues past the model's end token. With stop ids SGLang always stops at the end
        token, too.

        Args:
            limit: maximum number of tokens to sample.
            salt: cached prefixes are shared only between requests with the same salt.
        """
        sampling = request.sampling
        params: dict[str, Any] = {
            "max_new_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            **PLAIN,
            "stop_token_ids": list(sampling.stop_ids),
            "ignore_eos": not sampling.stop_ids and sampling.json_schema is None,
            "skip_special_tokens": False,
            "no_stop_trim": True,  # the stop token is part of the reply
            "stream_interval": INTERVAL,
            # Only read with --enable-deterministic-inference. Without a seed all requests would then sample the same.
            "sampling_seed": secrets.randbits(31) if sampling.seed is None else sampling.seed,
        }
        if sampling.json_schema is not None:
            schema = json.loads(sampling.json_schema)
            params["json_schema"] = json.dumps(schema or {"type": "object"})
        return {
            "input_ids": request.prompt_ids.tolist(),
            "sampling_params": params,
            "return_logprob": True,
            "top_logprobs_num": sampling.top_logprobs,
            "extra_key": salt,
            "stream": True,
        }

    def build_score_body(self, ids: list[int], first: int, salt: str) -> dict[str, Any]:
        """Build the JSON body of a request for the log-probabilities of `ids[first:]`, without sampling.

        Args:
            ids: token ids of a text.
            salt: cached prefixes are shared only between requests with the same salt.
        """
        return {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": first - 1,
            "extra_key": salt,
            "stream": False,
        }

    def parse_scores(self, answer: dict[str, Any], ids: list[int]) -> list[float]:
        """Return the logprobs at temperature 1 of `ids`, the last ids of a scored prompt.

        Raises:
            EngineFailure: the scores are missing or belong to other ids.
        """
        try:
            rows = answer["meta_info"]["input_token_logprobs"][-len(ids) :]
            if [int(row[1]) for row in rows] != ids:  # a row is (logprob, token id, ...)
                raise ValueError
            return [min(float(row[0]), 0.0) for row in rows]
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            raise EngineFailure(
                "the server returned log-probabilities of other tokens than it sampled, or none"
            ) from problem

    def parse_drawn(self, answer: dict[str, Any]) -> tuple[list[int], list[float]]:
        """Return the sampled ids and their logprobs from a response that was not streamed."""
        rows = answer["meta_info"]["output_token_logprobs"]
        return [int(row[1]) for row in rows], [float(row[0]) for row in rows]


class RemoteSglang(RemoteEngine):
    """A remote SGLang server as an engine."""

    wire = SglangWire()
