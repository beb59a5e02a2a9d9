"""Converts requests to vLLM's parameters and vLLM's outputs to chunks.

Invariant: a chunk holds tokens of one version. Ids, logprobs and versions are cross-checked, and the final count is
compared with vLLM's statistics. An inconsistent reply is refused, never recorded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.engine.draws import hash_draw_key
from ajet.schema.errors import EngineFailure

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput

SEND_EVERY = 4
"""Tokens of a running reply sent together."""
OURS = "ajet"
"""Key of the sampler's parameters in a request's extra arguments."""
VERSIONS, LIKELIEST = -1, -(1 << 30)
"""Start values for the encoded ids in a token's extra columns, as in `worker.VersionedSampler`."""
FINISHES = {"stop": "stop", "length": "length"}


def sampling_params(request: TokenRequest, limit: int) -> SamplingParams:
    """Build vLLM's parameters for a reply of at most `limit` tokens; ajet's sampler reads its own from `extra_args`."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    sampling = request.sampling
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
        extra_args={OURS: [hash_draw_key(request.draws), sampling.temperature, sampling.top_p, sampling.top_k]},
        stop_token_ids=list(sampling.stop_ids),
        ignore_eos=grammar is None,  # stop_ids end a reply; a grammar knows only the tokenizer's end token
        logprobs=1 + sampling.top_logprobs,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=SEND_EVERY,
        structured_outputs=grammar,
    )


class OutputReader:
    """Converts the outputs of one request to chunks."""

    def __init__(self, top_logprobs: int) -> None:
        self._top_logprobs = top_logprobs
        self._tokens = 0
        self._version = -1

    def chunks(self, output: RequestOutput, present: int) -> list[TokenChunk]:
        """Return the new tokens as one chunk per version.

        Args:
            present: version for a final chunk without tokens.

        Raises:
            EngineFailure: ids, logprobs, versions or counts are inconsistent.
        """
        piece = output.outputs[0]
        found: list[TokenChunk] = []
        columns: Any = piece.logprobs
        for k, token in enumerate(piece.token_ids):
            start, stop = columns.start_indices[k], columns.end_indices[k]
            if columns.token_ids[start] != token:
                raise EngineFailure(
                    f"token {self._tokens} of the reply has the id {token}, but its log-probability belongs to "
                    f"id {columns.token_ids[start]}"
                )
            version = VERSIONS - columns.token_ids[start + 1]
            if version < self._version:
                raise EngineFailure(
                    f"token {self._tokens} of the reply was sampled by policy version {version}, the token "
                    f"before by version {self._version}"
                )
            if not found or found[-1].version != version:
                found.append(TokenChunk([], [], [], version))
            chunk = found[-1]
            chunk.ids.append(token)
            chunk.logprobs.append(min(columns.logprobs[start], 0.0))
            chunk.logprobs_unit.append(min(columns.logprobs[start + 1], 0.0))
            if self._top_logprobs:
                likeliest = range(start + 2, min(stop, start + 2 + self._top_logprobs))
                chunk.top.append([(LIKELIEST - columns.token_ids[at], columns.logprobs[at]) for at in likeliest])
            self._version, self._tokens = version, self._tokens + 1
        if piece.finish_reason is not None:
            self._finish_reply(output, found, present)
        return found

    def _finish_reply(self, output: RequestOutput, found: list[TokenChunk], present: int) -> None:
        reason = output.outputs[0].finish_reason
        if reason not in FINISHES:
            raise EngineFailure(f"vLLM ended the reply after {self._tokens} tokens: {reason}")
        counted = output.metrics.num_generation_tokens if output.metrics is not None else -1
        if counted != self._tokens:
            raise EngineFailure(f"vLLM streamed {self._tokens} tokens, but counts {counted}")
        if not found:
            found.append(TokenChunk([], [], [], max(self._version, present)))
        found[-1].finish = FINISHES[reason]  # type: ignore[assignment]
