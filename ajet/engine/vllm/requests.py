"""A request in vLLM's terms, and vLLM's outputs as chunks.

Invariant: a chunk holds tokens of one version; ids, logprobs and versions are checked against each other and, at the
end, counted against vLLM's own statistics: a reply whose pieces do not fit together is refused, never recorded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.engine.draws import stream_of
from ajet.schema.errors import EngineFailure

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput

SEND_EVERY = 4
"""Tokens of a running reply that are sent together."""
COLDEST = 0.01
"""vLLM raises a temperature between 0 and this one, which would not be the one that was asked for."""
FINISHES = {"stop": "stop", "length": "length"}


def seed_of(request: TokenRequest) -> int:
    """[0, 2^63) the seed of the call's own generator: equal names draw equal numbers, whatever else runs."""
    return stream_of(request.draws) >> 1


def sampling_params(request: TokenRequest, limit: int) -> SamplingParams:
    """For a reply of at most `limit` tokens. Raises EngineFailure for what vLLM would do otherwise than asked."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    sampling = request.sampling
    if 0 < sampling.temperature < COLDEST:
        raise EngineFailure(
            f"vLLM does not sample at a temperature of {sampling.temperature}: choose 0 or at least {COLDEST}",
            retryable=False,
        )
    grammar = None
    if sampling.json_schema is not None:
        anything = json.loads(sampling.json_schema) == {}
        grammar = (
            StructuredOutputsParams(json_object=True)
            if anything
            else StructuredOutputsParams(json=sampling.json_schema)
        )
    return SamplingParams(
        max_tokens=limit,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=seed_of(request),
        stop_token_ids=list(sampling.stop_ids),
        ignore_eos=True,  # what ends a reply is said by stop_ids
        logprobs=1 + sampling.top_logprobs,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=SEND_EVERY,
        structured_outputs=grammar,
    )


class Reading:
    """Turns one request's outputs into chunks."""

    def __init__(self, top_logprobs: int) -> None:
        self._top = top_logprobs
        self._tokens = 0
        self._version = -1

    def chunks(self, output: RequestOutput, present: int) -> list[TokenChunk]:
        """The new tokens, one chunk a version. `present` is the version for an end without a token. Raises
        EngineFailure."""
        piece = output.outputs[0]
        found: list[TokenChunk] = []
        columns: Any = piece.logprobs
        for k, token in enumerate(piece.token_ids):
            start, stop = columns.start_indices[k], columns.end_indices[k]
            if columns.token_ids[start] != token:
                raise EngineFailure(
                    f"token {self._tokens} has id {token}, its logprob is of {columns.token_ids[start]}"
                )
            version = columns.token_ids[start + 1]
            if version < self._version:
                raise EngineFailure(f"token {self._tokens} is of version {version}, the one before of {self._version}")
            if not found or found[-1].version != version:
                found.append(TokenChunk([], [], [], version))
            chunk = found[-1]
            chunk.ids.append(token)
            chunk.logprobs.append(min(columns.logprobs[start], 0.0))
            chunk.logprobs_unit.append(min(columns.logprobs[start + 1], 0.0))
            if self._top:
                rows = zip(columns.token_ids[start + 2 : stop], columns.logprobs[start + 2 : stop], strict=True)
                chunk.top.append(list(rows)[: self._top])
            self._version, self._tokens = version, self._tokens + 1
        if piece.finish_reason is not None:
            self._end(output, found, present)
        return found

    def _end(self, output: RequestOutput, found: list[TokenChunk], present: int) -> None:
        reason = output.outputs[0].finish_reason
        if reason not in FINISHES:
            raise EngineFailure(f"vLLM ended the reply after {self._tokens} tokens: {reason}")
        counted = output.metrics.num_generation_tokens if output.metrics is not None else -1
        if counted != self._tokens:
            raise EngineFailure(f"vLLM streamed {self._tokens} tokens and counts {counted}")
        if not found:
            found.append(TokenChunk([], [], [], max(self._version, present)))
        found[-1].finish = FINISHES[reason]  # type: ignore[assignment]
