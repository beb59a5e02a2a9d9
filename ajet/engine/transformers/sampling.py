"""From logits to tokens, all rows at once.

Invariant: a token is the inverse of its distribution's cumulative function at its row's uniform number, so a row's
draw does not depend on the other rows; `logprobs` are of exactly the distribution that was drawn from (temperature,
then top-k, then top-p), `logprobs_unit` of the model's at temperature 1. At temperature 0 the most likely token is
taken, with logprob 0.
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


@dataclass(frozen=True, slots=True)
class Drawn:
    """[B] each; `top` holds, per row, the alternatives it asked for."""

    ids: list[int]
    logprobs: list[float]
    logprobs_unit: list[float]
    top: list[list[tuple[int, float]]]


def draw(logits_BV: Tensor, settings: Sequence[Sampling], uniforms_B: npt.NDArray[np.float64]) -> Drawn:
    """One token a row. `logits_BV` may be of any float type; it is not changed."""
    logits = logits_BV.float()
    device = logits.device
    unit_B = torch.logsumexp(logits, -1)
    temperatures = [s.temperature for s in settings]
    scaled = logits
    if any(t not in (0.0, 1.0) for t in temperatures):
        scaled = logits / torch.tensor([t or 1.0 for t in temperatures], device=device)[:, None]
    cut = [b for b, s in enumerate(settings) if s.temperature > 0 and (s.top_k > 0 or s.top_p < 1.0)]
    if cut:
        scaled = scaled.clone() if scaled is logits else scaled
        scaled[cut] = _truncated(scaled[cut], [settings[b] for b in cut])
    ids_B = _inverse(scaled, torch.from_numpy(uniforms_B).to(device))
    greedy = [b for b, t in enumerate(temperatures) if t == 0.0]
    if greedy:
        ids_B[greedy] = logits[greedy].argmax(-1)
    sampled_B = scaled.gather(1, ids_B[:, None])[:, 0] - (unit_B if scaled is logits else torch.logsumexp(scaled, -1))
    if greedy:
        sampled_B[greedy] = 0.0
    chosen_B = logits.gather(1, ids_B[:, None])[:, 0] - unit_B
    table = torch.stack([ids_B.double(), sampled_B.double(), chosen_B.double()]).tolist()
    top = _alternatives(logits, unit_B, [s.top_logprobs for s in settings])
    return Drawn([int(i) for i in table[0]], [min(p, 0.0) for p in table[1]], [min(p, 0.0) for p in table[2]], top)


def _inverse(scaled_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """[B] the first token whose cumulative probability exceeds the number. Two levels: sums of blocks, then the
    block that contains it; both cumulated in float64, which 50,000 float32 terms would need."""
    rows, vocabulary = scaled_BV.shape
    weights = (scaled_BV - scaled_BV.amax(-1, keepdim=True)).exp_()
    pad = -vocabulary % _BLOCK
    if pad:
        weights = torch.nn.functional.pad(weights, (0, pad))
    blocks = weights.view(rows, -1, _BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    goal = uniforms_B[:, None] * ends[:, -1:]
    block = (ends <= goal).sum(-1, keepdim=True).clamp_(max=ends.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), torch.zeros_like(goal))
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double()
    within = ((inside.cumsum(-1) + before) <= goal).sum(-1)
    # Rounding can put the goal just past the end of the block: then the block's last possible token is meant.
    places = torch.arange(_BLOCK, device=inside.device)
    last = torch.where(inside > 0, places, -1).amax(-1)
    return block[:, 0] * _BLOCK + torch.minimum(within, last.clamp_(min=0))


def _truncated(scaled_BV: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """The same with -inf for what top-k, then top-p (nucleus sampling, arXiv 1904.09751) leave out."""
    ordered, order = scaled_BV.sort(-1, descending=True)
    vocabulary = ordered.shape[1]
    keep = torch.tensor([s.top_k if 0 < s.top_k < vocabulary else vocabulary for s in settings], device=ordered.device)
    ordered = ordered.masked_fill(torch.arange(vocabulary, device=ordered.device) >= keep[:, None], float("-inf"))
    share = ordered.softmax(-1)
    mass = torch.tensor([s.top_p for s in settings], device=ordered.device)
    before = share.cumsum(-1) - share  # the most likely token has none before it and always stays
    outside = before >= mass[:, None]
    outside[:, 0] = False
    return torch.empty_like(scaled_BV).scatter_(1, order, ordered.masked_fill(outside, float("-inf")))


def _alternatives(logits_BV: Tensor, unit_B: Tensor, wanted: list[int]) -> list[list[tuple[int, float]]]:
    most = min(max(wanted, default=0), logits_BV.shape[1])
    if most == 0:
        return [[] for _ in wanted]
    values, ids = logits_BV.topk(most, -1)
    rows = zip(ids.tolist(), (values - unit_B[:, None]).tolist(), wanted, strict=True)
    return [list(zip(i[:n], p[:n], strict=True)) for i, p, n in rows]
