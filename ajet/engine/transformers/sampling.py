"""Draws tokens from logits for all rows at once.

Invariant: a token is the inverse of its cumulative distribution at its row's uniform number, so rows do not affect each
other. `logprobs` belong to the sampled distribution (temperature, then top-k, then top-p), `logprobs_unit` to the
model's at temperature 1. Temperature 0 takes the most likely token with logprob 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ajet.engine.contract import Sampling

_BLOCK = 256
_AT_ONCE = 4
"""Rows sampled together per thread, so that their float32 logits fit in a core's cache."""


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Sampled tokens with log-probabilities, shape [B] each, and the requested top log-probabilities (`top`)."""

    ids: list[int]
    logprobs: list[float]
    logprobs_unit: list[float]
    top: list[list[tuple[int, float]]]


class Sampler:
    """Draws a step's tokens.

    The buffers for probabilities are reused between steps: allocating new pages takes several times as long as the
    computation.
    """

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def draw(self, logits_BV: Tensor, settings: Sequence[Sampling], uniforms_B: npt.NDArray[np.float64]) -> DrawnTokens:
        """Draw one token per row. `logits_BV` may have any float dtype and is not changed."""
        ids_B, logprobs_2B, unit_BV = self.draw_tensors(logits_BV, settings, uniforms_B)
        logprob_lists = logprobs_2B.tolist()
        top = _list_alternatives(unit_BV, [sampling.top_logprobs for sampling in settings])
        return DrawnTokens(ids_B.tolist(), logprob_lists[0], logprob_lists[1], top)

    def draw_tensors(
        self,
        logits_BV: Tensor,
        settings: Sequence[Sampling],
        uniforms_B: npt.NDArray[np.float64],
        *,
        unmasked_BV: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw one token per row, with tensors as result.

        Args:
            unmasked_BV: the model's logits before a grammar set some ids of `logits_BV` to -inf. Masked ids are never
                drawn; probabilities at temperature 1 come from the unmasked logits.

        Returns:
            ids [B], logprobs [2, B] (as sampled, and at temperature 1), and probabilities [B, V] at temperature 1,
            valid until the next call.
        """
        device = logits_BV.device
        unit_BV = self._compute_softmax("unit", logits_BV if unmasked_BV is None else unmasked_BV)
        sampled_BV = unit_BV
        shaped_rows = [
            row
            for row, sampling in enumerate(settings)
            if sampling.temperature > 0 and not (sampling.is_plain and unmasked_BV is None)
        ]
        if shaped_rows:
            sampled_BV = self._copy_values("sampled", unit_BV)
            sampled_BV[shaped_rows] = _shape_probabilities(
                logits_BV[shaped_rows].float(), [settings[row] for row in shaped_rows]
            )
        greedy_rows = [row for row, sampling in enumerate(settings) if sampling.temperature == 0]
        if len(greedy_rows) < len(settings):
            ids_B = _invert_cumulative(sampled_BV, torch.from_numpy(uniforms_B).to(device))
        else:
            ids_B = torch.zeros(len(settings), dtype=torch.long, device=device)
        if greedy_rows:
            # The probabilities ignore the grammar's mask, so masked logits decide by themselves.
            uses_logits = logits_BV.dtype == torch.float32 or unmasked_BV is not None
            ids_B[greedy_rows] = (logits_BV if uses_logits else unit_BV)[greedy_rows].argmax(-1)
        chosen_B = sampled_BV.gather(1, ids_B[:, None])[:, 0].double()
        if greedy_rows:
            chosen_B[greedy_rows] = 1.0
        at_unit_B = unit_BV.gather(1, ids_B[:, None])[:, 0].double()
        return ids_B, torch.stack([chosen_B, at_unit_B]).clamp_(_LEAST, 1.0).log_(), unit_BV

    def _compute_softmax(self, name: str, logits_BV: Tensor) -> Tensor:
        """Return the probabilities [B, V] in float32, in the buffer `name`. On a CPU a few rows at a time fit its
        cache.
        """
        buffer = self._reserve_memory(name, logits_BV)
        if logits_BV.device.type != "cpu":
            return torch.softmax(logits_BV, -1, dtype=torch.float32, out=buffer)
        rows = _AT_ONCE * torch.get_num_threads()
        for logits, out in zip(logits_BV.split(rows), buffer.split(rows), strict=True):
            torch.softmax(logits, -1, dtype=torch.float32, out=out)
        return buffer

    def _copy_values(self, name: str, values_BV: Tensor) -> Tensor:
        """Return a float32 copy of the values [B, V] in the buffer `name`."""
        return self._reserve_memory(name, values_BV).copy_(values_BV)

    def _reserve_memory(self, name: str, like: Tensor) -> Tensor:
        """Return the float32 buffer `name` in the shape [B, V] and on the device of `like`, allocated if it is too
        small.
        """
        rows, vocabulary = like.shape
        buffer = self._memory.get(name)
        if buffer is None or buffer.shape[0] < rows or buffer.shape[1] != vocabulary or buffer.device != like.device:
            buffer = torch.empty(rows, vocabulary, dtype=torch.float32, device=like.device)
            self._memory[name] = buffer
        return buffer[:rows]


_LEAST = torch.finfo(torch.float32).tiny
"""Float32 probabilities below this count as 0; the logarithm is then -87.3, the logarithm of this number."""


def _shape_probabilities(logits_BV: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """Return probabilities [B, V] after temperature, top-k and top-p."""
    temperatures = torch.tensor([sampling.temperature for sampling in settings], device=logits_BV.device)
    scaled = logits_BV / temperatures[:, None]
    truncated_rows = [row for row, sampling in enumerate(settings) if sampling.top_k > 0 or sampling.top_p < 1.0]
    if truncated_rows:
        scaled[truncated_rows] = _truncate_logits(scaled[truncated_rows], [settings[row] for row in truncated_rows])
    return scaled.softmax(-1)


def _invert_cumulative(probability_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Return the first token whose cumulative probability exceeds the uniform number, shape [B].

    Works in two levels: sums of blocks, then the block with the token. Both levels cumulate in float64, because float32
    is too coarse for 50,000 terms.
    """
    rows, vocabulary = probability_BV.shape
    full = vocabulary // _BLOCK * _BLOCK
    sums = probability_BV[:, :full].unflatten(1, (-1, _BLOCK)).sum(-1)
    if full < vocabulary:
        sums = torch.cat([sums, probability_BV[:, full:].sum(-1, keepdim=True)], -1)
    ends = sums.double().cumsum(-1)
    goal = uniforms_B[:, None] * ends[:, -1:]
    block = (ends <= goal).sum(-1, keepdim=True).clamp_(max=ends.shape[1] - 1)
    sum_before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), torch.zeros_like(goal))
    token_ids = block * _BLOCK + torch.arange(_BLOCK, device=block.device)
    inside = probability_BV.gather(1, token_ids.clamp(max=vocabulary - 1)).double() * (token_ids < vocabulary)
    within = ((inside.cumsum(-1) + sum_before) <= goal).sum(-1)
    # if rounding moves the goal past the end of the block, the block's last possible token is taken
    last_possible = torch.where(inside > 0, token_ids - block * _BLOCK, -1).amax(-1)
    return block[:, 0] * _BLOCK + torch.minimum(within, last_possible.clamp_(min=0))


def _truncate_logits(scaled_BV: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """Return logits with -inf for tokens excluded by top-k, then top-p (nucleus sampling, arXiv 1904.09751)."""
    ordered, order = scaled_BV.sort(-1, descending=True)
    vocabulary = ordered.shape[1]
    allowed_counts = torch.tensor(
        [sampling.top_k if 0 < sampling.top_k < vocabulary else vocabulary for sampling in settings],
        device=ordered.device,
    )
    ordered = ordered.masked_fill(
        torch.arange(vocabulary, device=ordered.device) >= allowed_counts[:, None], float("-inf")
    )
    shares = ordered.softmax(-1)
    top_ps = torch.tensor([sampling.top_p for sampling in settings], device=ordered.device)
    mass_before = shares.cumsum(-1) - shares  # the most likely token has mass 0 before it and always stays
    outside = mass_before >= top_ps[:, None]
    outside[:, 0] = False
    return torch.empty_like(scaled_BV).scatter_(1, order, ordered.masked_fill(outside, float("-inf")))


def _list_alternatives(unit_BV: Tensor, wanted: list[int]) -> list[list[tuple[int, float]]]:
    """Return the most likely tokens of each row as (id, logprob at temperature 1).

    Args:
        unit_BV: probabilities at temperature 1.
        wanted: number of tokens for each row.
    """
    largest = min(max(wanted, default=0), unit_BV.shape[1])
    if largest == 0:
        return [[] for _ in wanted]
    values, ids = unit_BV.topk(largest, -1)
    rows = zip(ids.tolist(), values.clamp(min=_LEAST).log().tolist(), wanted, strict=True)
    return [list(zip(row_ids[:count], row_logprobs[:count], strict=True)) for row_ids, row_logprobs, count in rows]
