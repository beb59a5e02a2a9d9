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
"""vLLM's reasons for the regular end of a reply, and ajet's. Others, such as "abort", are failures."""


def sampling_params(request: TokenRequest, limit: int) -> SamplingParams:
    """Return vLLM's sampling parameters for a reply of at most `limit` tokens.

    Temperature, top-p, top-k and the random number's key are in `extra_args`, from which ajet's sampler in vLLM's
    worker reads them. vLLM's own sampler is not used.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    sampling = request.sampling
    grammar = None
    if sampling.json_schema is not None:
        allows_any_object = json.loads(sampling.json_schema) == {}
        grammar = (
            StructuredOutputsParams(json_object=True)
            if allows_any_object
            else StructuredOutputsParams(json=sampling.json_schema)
        )
    return SamplingParams(
        max_tokens=limit,
        extra_args={OURS: [hash_draw_key(request.draws), sampling.temperature, sampling.top_p, sampling.top_k]},
        stop_token_ids=list(sampling.stop_ids),
        ignore_eos=grammar is None,  # stop_ids end a reply; a grammar knows only the tokenizer's end token
        logprobs=1 + sampling.top_logprobs,  # one more column per token, for the policy version
        flat_logprobs=True,  # flat lists, which are cheaper than vLLM's dict per token
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,  # each output has only the new tokens
        stream_interval=SEND_EVERY,
        structured_outputs=grammar,
    )


class OutputReader:
    """Converts vLLM's outputs of one request to chunks of tokens."""

    def __init__(self, top_logprobs: int) -> None:
        """Start a reply. `top_logprobs` is the number of alternatives per token that the request wants."""
        self._top_logprobs = top_logprobs
        self._tokens = 0
        """Number of tokens read so far."""
        self._version = -1
        """Policy version of the last token, -1 before the first."""

    def chunks(self, output: RequestOutput, present: int) -> list[TokenChunk]:
        """Return the new tokens of an output, as one chunk per policy version that sampled them.

        Per token, the logprob columns hold in turn: its id and its logprob as sampled, its version and its logprob at
        temperature 1, and the likeliest tokens (`worker.VersionedSampler`).

        Args:
            present: the engine's current version, for a final chunk without tokens.

        Raises:
            EngineFailure: ids, logprobs, versions or counts are inconsistent.
        """
        completion = output.outputs[0]
        chunks: list[TokenChunk] = []
        columns: Any = completion.logprobs
        for index, token in enumerate(completion.token_ids):
            start, stop = columns.start_indices[index], columns.end_indices[index]
            if columns.token_ids[start] != token:
                raise EngineFailure(
                    f"token {self._tokens} of the reply has the id {token}, but its log-probability belongs to "
                    f"id {columns.token_ids[start]}"
                )
            version = VERSIONS - columns.token_ids[start + 1]  # encoded as a negative token id
            if version < self._version:
                raise EngineFailure(
                    f"token {self._tokens} of the reply was sampled by policy version {version}, the token "
                    f"before by version {self._version}"
                )
            if not chunks or chunks[-1].version != version:
                chunks.append(TokenChunk([], [], [], version))
            chunk = chunks[-1]
            chunk.ids.append(token)
            chunk.logprobs.append(min(columns.logprobs[start], 0.0))  # rounding may give a tiny positive number
            chunk.logprobs_unit.append(min(columns.logprobs[start + 1], 0.0))
            if self._top_logprobs:
                likeliest = range(start + 2, min(stop, start + 2 + self._top_logprobs))
                chunk.top.append(
                    [(LIKELIEST - columns.token_ids[column], columns.logprobs[column]) for column in likeliest]
                )
            self._version, self._tokens = version, self._tokens + 1
        if completion.finish_reason is not None:
            self._finish_reply(output, chunks, present)
        return chunks

    def _finish_reply(self, output: RequestOutput, chunks: list[TokenChunk], present: int) -> None:
        """Set the finish reason of the last chunk.

        Args:
            output: vLLM's last output of the request.
            chunks: the chunks of this output. If it has no tokens, a chunk without tokens is added.
            present: the engine's current version, for the added chunk.

        Raises:
            EngineFailure: the reply was aborted, or vLLM counts other tokens than it sent.
        """
        reason = output.outputs[0].finish_reason
        if reason not in FINISHES:
            raise EngineFailure(f"vLLM ended the reply after {self._tokens} tokens: {reason}")
        token_count = output.metrics.num_generation_tokens if output.metrics is not None else -1
        if token_count != self._tokens:
            raise EngineFailure(f"vLLM streamed {self._tokens} tokens, but counts {token_count}")
        if not chunks:
            chunks.append(TokenChunk([], [], [], max(self._version, present)))
        chunks[-1].finish = FINISHES[reason]  # type: ignore[assignment]
