"""The wire format of SGLang's `/generate`: a request's body, a stream's events, the scores of a prompt.

Invariant: each id is held against the one its logprob names, and their number against the server's own count, whether
an event bears all of the reply so far or what is new of it (`--incremental-streaming-output`); a stream that ends
before its finish, or whose finish is none of ours, is a failure, not a short reply.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.engine.streamed_reply import StreamedReply
from ajet.schema.errors import EngineFailure

PLAIN = {"min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
PLAIN |= {"min_new_tokens": 0, "n": 1}
"""Said, though it is what it would be: else a server's own `--preferred-sampling-params` bend what is drawn."""
INTERVAL = 32
"""Tokens between two events, after the first. Each bears the whole reply so far (some 45 bytes a token): one a
token would be 6 GB for a reply of 16K tokens."""


def body_of(request: TokenRequest, limit: int, salt: str) -> dict[str, Any]:
    """The JSON of a streamed request for at most `limit` tokens. Without stop ids it goes on past the model's own end;
    with some the server stops at that one, too: it knows no other way."""
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
        "no_stop_trim": True,
        "stream_interval": INTERVAL,
        # with --enable-deterministic-inference, which alone reads it, requests without one would all draw the same
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


class Reply(StreamedReply):
    """Reads the events of one stream."""

    def _read(self, event: dict[str, Any]) -> TokenChunk | None:
        told = event["meta_info"]
        if (reason := told["finish_reason"]) is not None:  # a stop string is none that was asked for
            ours = reason["type"] != "stop" or isinstance(reason.get("matched"), int)
            self._ended(reason["type"] if ours else None, reason)
        new = int(told["completion_tokens"]) - self._tokens
        if new < 0:
            raise EngineFailure(f"the server streamed {self._tokens} tokens and counts {new} more")
        return self._chunk(event["output_ids"], told["output_token_logprobs"], told, new) if new else None

    def _chunk(self, ids: list[int], rows: list[list[Any]], told: dict[str, Any], new: int) -> TokenChunk:
        if len(ids) < new or len(rows) < new:
            raise EngineFailure(f"the server counts {new} tokens and sent {len(ids)} with {len(rows)} logprobs")
        top = told["output_top_logprobs"][-new:] if self._top else []
        chunk = TokenChunk([], [], [], self._version)
        for token, (said, named, *_) in zip(ids[-new:], rows[-new:], strict=True):
            self._add(chunk, token, named, said)
        # one that a schema ruled out is said to have null: JSON knows no infinity
        likely = [[(int(token), said) for said, token, *_ in row[: self._top]] for row in top]
        chunk.top = [[(token, float(said)) for token, said in row if said is not None] for row in likely]
        return chunk


def scored(answer: dict[str, Any], ids: list[int]) -> list[float]:
    """The logprobs at temperature 1 of `ids`, the last of a prompt that was scored. Raises EngineFailure."""
    try:
        rows = answer["meta_info"]["input_token_logprobs"][-len(ids) :]
        if [int(row[1]) for row in rows] != ids:
            raise ValueError
        return [min(float(row[0]), 0.0) for row in rows]
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise EngineFailure("the server scored other tokens than it drew, or none") from problem
