"""The wire format of `/inference/v1/generate`: a request's body, a stream's events, the scores of a prompt.

Invariant: the ids that were streamed are counted against the usage that the server sends at the end, each id against
the one its logprob names; a stream that ends before its finish and its usage is a failure, not a short reply.
"""

from __future__ import annotations

import json
from typing import Any

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.engine.streamed_reply import StreamedReply
from ajet.schema.errors import EngineFailure

ID = "token_id:"


def body_of(request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
    """The JSON of a streamed request for at most `limit` tokens."""
    sampling = request.sampling
    params: dict[str, Any] = {
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": sampling.json_schema is None,
        "logprobs": sampling.top_logprobs,
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


class Reply(StreamedReply):
    """Reads the events of one stream."""

    def __init__(self, request: TokenRequest, version: int) -> None:
        super().__init__(request, version)
        self._usage: int | None = None

    def end(self) -> TokenChunk:
        """Raises EngineFailure where the stream lost tokens, too."""
        if self._usage is None:
            self._finish = None
        last = super().end()
        if self._usage != self._tokens:
            raise EngineFailure(f"the server streamed {self._tokens} tokens and counts {self._usage}")
        return last

    def _read(self, event: dict[str, Any]) -> TokenChunk | None:
        if event.get("usage"):
            self._usage = int(event["usage"]["completion_tokens"])
        chunk = None
        for choice in event["choices"]:
            if (reason := choice.get("finish_reason")) is not None:
                self._ended(reason, reason)
            chunk = self._chunk(choice["token_ids"], choice["logprobs"]["content"])
        return chunk

    def _chunk(self, ids: list[int], content: list[dict[str, Any]]) -> TokenChunk:
        if len(ids) != len(content):
            raise EngineFailure(f"the server sent {len(ids)} tokens with {len(content)} logprobs")
        chunk = TokenChunk([], [], [], self._version)
        for token, said in zip(ids, content, strict=True):
            self._add(chunk, token, said["token"], said["logprob"], spelled=f"{ID}{token}")
            if self._top:
                rows = [(int(row["token"].removeprefix(ID)), float(row["logprob"])) for row in said["top_logprobs"]]
                chunk.top.append(rows[: self._top])
        return chunk


def scored(answer: dict[str, Any], ids: list[int]) -> list[float]:
    """The logprobs at temperature 1 of `ids`, the last of a prompt that was scored. Raises EngineFailure."""
    rows = answer.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) < len(ids):
        raise EngineFailure("the server did not score the reply: it sent no prompt_logprobs")
    try:
        return [min(float(row[str(token)]["logprob"]), 0.0) for row, token in zip(rows[-len(ids) :], ids, strict=True)]
    except (KeyError, TypeError, ValueError) as problem:
        raise EngineFailure("the server scored other tokens than it drew") from problem
