"""RemoteVllm uses the token-in-token-out route of `vllm serve`, `POST /inference/v1/generate`.

The route takes exact ids and returns exact ids with one logprob per token: of the sampled distribution with
`--logprobs-mode processed_logprobs`, at temperature 1 with `raw_logprobs` (the default). Invariant: the number of
streamed ids must equal the final usage count, and each id must match its logprob's id. A stream without finish and
usage is a failure, not a short reply.

A server may also send `weight_versions` (the names of the weights of each span of tokens, which must be the confirmed
one), `routed_experts` (passed on) and `sampling_mask` (the ids left by top_k and top_p; not read, because
`processed_logprobs` are already of that truncated distribution).
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.schema.errors import EngineFailure
from ajet_vllm.remote import RemoteEngine
from ajet_vllm.server_weights import ServerWeights
from ajet_vllm.versions import SUPPORTED_VERSIONS
from ajet_vllm.wire import StreamedReply, Wire

ROUTE = "/inference/v1/generate"


NAME_ROUTE = "/weight_info"
DEV_MODE = "VLLM_SERVER_DEV_MODE=1"


class VllmWeights(ServerWeights):
    """Reads and changes the weights of a vLLM server.

    A server started with `VLLM_SERVER_DEV_MODE=1` stores a name for its weights (`GET /weight_info`, set by the client)
    and loads a checkpoint folder on its own machine (`POST /collective_rpc`, reload_weights). Other servers support
    neither, and keep their weights until a restart. Loading and naming are two requests: a crash in between is detected
    later.
    """

    kind = "vLLM"
    expected = f"a server of vLLM {SUPPORTED_VERSIONS}; to receive new weights it must be started with {DEV_MODE}"
    cannot = DEV_MODE

    def name(self) -> str | None:
        """Return the server's name for its weights, or None without dev mode."""
        answer = self._send_request("GET", NAME_ROUTE)
        return None if answer.status_code == 404 else str(self._parse_answer(answer).get("weight_version"))

    def _load_folder(self, folder: Path, name: str) -> str:
        """Load the weights in a folder, drop the prefix cache of the old ones, and return the server's name for them.

        The name does not change with the load, so it shows whether another process has set it meanwhile.
        """
        reload: dict[str, Any] = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._parse_answer(
            self._send_request("POST", "/collective_rpc", reload),
            f"load the folder {folder}, which must also exist on the server's machine",
        )
        self._parse_answer(self._send_request("POST", "/reset_prefix_cache"))
        return str(self.name())


DEFAULT_MAX_LOGPROBS = 20
"""What a server allows without --max-logprobs."""


def _count_alternatives(wanted: int) -> int:
    """Return the number of alternatives per token to request, so that the response has `wanted` likeliest tokens.

    In a response an unlikely sampled token takes the place of the last alternative, so one more is requested, if the
    server's default limit allows it. 0 stays 0.
    """
    return wanted and max(wanted, min(wanted + 1, DEFAULT_MAX_LOGPROBS))


ID_PREFIX = "token_id:"


def read_token_id(logprob: dict[str, Any]) -> int:
    """Return the token id of an entry of a response's logprobs.

    vLLM sends `token_id: N` since 0.32, and `token: "token_id:N"` before.
    """
    return int(logprob["token_id"] if "token_id" in logprob else logprob["token"].removeprefix(ID_PREFIX))


class VllmReply(StreamedReply):
    """Reads the events of one streamed reply of a vLLM server."""

    def __init__(self, request: TokenRequest, version: int) -> None:
        """Start a reply to `request`, sampled by policy `version`."""
        super().__init__(request, version)
        self._usage: int | None = None
        """The server's count of sampled tokens, sent with the last event."""

    def end(self) -> TokenChunk:
        """Return the last chunk, which has the finish reason and no tokens.

        Raises:
            EngineFailure: the stream is incomplete or lost tokens.
        """
        if self._usage is None:
            self._finish = None  # the stream broke off before its last event: `super().end()` raises
        last_chunk = super().end()
        if self._usage != self._tokens:
            raise EngineFailure(f"the server streamed {self._tokens} tokens, but counts {self._usage}")
        return last_chunk

    def _read_event(self, event: dict[str, Any]) -> TokenChunk | None:
        """Return the tokens of one event, or None for an event without choices, which has only the usage."""
        if event.get("usage"):
            self._usage = int(event["usage"]["completion_tokens"])
        chunk = None
        for choice in event["choices"]:
            if (reason := choice.get("finish_reason")) is not None:
                self._set_finish(reason, reason)  # vLLM's reasons have ajet's names
            chunk = self._build_chunk(choice["token_ids"], choice["logprobs"]["content"])
            if spans := choice.get("weight_versions"):
                self._read_weight_names(spans)
            if (encoded := choice.get("routed_experts")) is not None:
                chunk.routed_experts = self._decode_experts(encoded)
        return chunk

    def _read_weight_names(self, spans: list[dict[str, Any]]) -> None:
        """Store the names of the weights that sampled the reply.

        Args:
            spans: start, end and weight name (`version`) of each run of tokens. Together they must cover all tokens.

        Raises:
            EngineFailure: the spans have gaps or overlaps.
        """
        ends = [0, *(int(span["end"]) for span in spans)]
        if [span["start"] for span in spans] != ends[:-1] or ends[-1] != self._tokens:
            raise EngineFailure(
                f"the server's weight versions {spans} do not cover the {self._tokens} tokens that it sent"
            )
        self.weight_names = {str(span["version"]) for span in spans}

    def _decode_experts(self, encoded: str) -> npt.NDArray[np.integer[Any]]:
        """Return routed experts, an array [tokens - 1, layers, experts per token], from a base64-encoded `.npy` file.

        The last token of prompt and reply has none, since it was sampled but not computed.

        Raises:
            EngineFailure: the array has another shape.
        """
        experts: npt.NDArray[np.integer[Any]] = np.load(io.BytesIO(base64.b64decode(encoded)))
        computed = self._prompt_tokens + self._tokens - 1
        if experts.ndim != 3 or len(experts) != computed:
            raise EngineFailure(f"the server sent experts of the shape {experts.shape} for {computed} tokens")
        return experts

    def _build_chunk(self, ids: list[int], content: list[dict[str, Any]]) -> TokenChunk:
        """Return tokens as a chunk.

        Args:
            ids: ids of the tokens.
            content: the server's log-probability entry of each token, with its likeliest alternatives.

        Raises:
            EngineFailure: an entry is missing or belongs to another token.
        """
        if len(ids) != len(content):
            raise EngineFailure(f"the server sent {len(ids)} tokens, but {len(content)} log-probabilities")
        chunk = TokenChunk([], [], [], self._version)
        for token, entry in zip(ids, content, strict=True):
            self._add_token(chunk, token, read_token_id(entry), entry["logprob"])
            if self._top_logprobs:
                likeliest = [
                    (read_token_id(alternative), float(alternative["logprob"])) for alternative in entry["top_logprobs"]
                ]
                likeliest.sort(key=lambda pair: -pair[1])  # vLLM lists the sampled token first, even if unlikely
                chunk.top.append(likeliest[: self._top_logprobs])
        return chunk


class VllmWire(Wire):
    """vLLM's requests and responses."""

    reply = VllmReply
    weights = VllmWeights
    kind = "vLLM"
    expected = "the URL of `vllm serve MODEL` (since 0.32 with --enable-scale-out), and its API key in .env"
    sampled_logprobs_option = "start the server with --logprobs-mode processed_logprobs"
    reports_truncated = True
    route = ROUTE
    name_route = NAME_ROUTE
    version_route = "/version"
    tested_versions = SUPPORTED_VERSIONS

    def find_max_length(self, client: httpx.Client, served: dict[str, Any]) -> int:
        """Return the longest sequence of prompt and reply that the server accepts, in tokens.

        Args:
            served: the served model's entry in `/v1/models`. Without a limit there, a number above every context.
        """
        return int(served.get("max_model_len") or 1 << 30)

    def build_body(self, request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
        """Build the JSON body of a streamed generate request.

        Args:
            limit: maximum number of tokens to sample.
            salt: cached prefixes are shared only between requests with the same salt.
        """
        sampling = request.sampling
        params: dict[str, Any] = {
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": list(sampling.stop_ids),
            "ignore_eos": sampling.json_schema is None,  # the stop ids end a reply; a grammar ends with the end token
            "logprobs": _count_alternatives(sampling.top_logprobs),
            "detokenize": False,
        }
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        if sampling.json_schema is not None:
            schema = json.loads(sampling.json_schema)
            params["structured_outputs"] = {"json_object": True} if schema == {} else {"json": schema}
        return {
            "token_ids": request.prompt_ids.tolist(),
            "sampling_params": params,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
        }

    def build_score_body(self, ids: list[int], first: int, salt: str) -> dict[str, Any]:
        """Build the JSON body of a request for the log-probabilities of a text.

        Args:
            ids: token ids of the text.
            first: position from which on scores are needed. Not used, since vLLM always scores the complete text.
            salt: cached prefixes are shared only between requests with the same salt.
        """
        # A reply cannot be empty, so one token is sampled and ignored.
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        return {"token_ids": ids, "sampling_params": params, "stream": False, "cache_salt": salt}

    def parse_scores(self, answer: dict[str, Any], ids: list[int]) -> list[float]:
        """Return the logprobs at temperature 1 of `ids`, the last ids of a scored prompt.

        Raises:
            EngineFailure: the scores are missing or belong to other ids.
        """
        rows = answer.get("prompt_logprobs")  # per token of the text a dict from token id to logprob
        if not isinstance(rows, list) or len(rows) < len(ids):
            raise EngineFailure("the server returned no log-probabilities of the reply: prompt_logprobs is missing")
        try:
            return [
                min(float(row[str(token)]["logprob"]), 0.0) for row, token in zip(rows[-len(ids) :], ids, strict=True)
            ]
        except (KeyError, TypeError, ValueError) as problem:
            raise EngineFailure("the server returned log-probabilities of other tokens than it sampled") from problem

    def parse_drawn(self, answer: dict[str, Any]) -> tuple[list[int], list[float]]:
        """Return the sampled ids and their logprobs from a response that was not streamed."""
        choice = answer["choices"][0]
        logprobs = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
        return [int(token) for token in choice["token_ids"]], logprobs


class RemoteVllm(RemoteEngine):
    """A remote vLLM server as an engine."""

    wire = VllmWire()
