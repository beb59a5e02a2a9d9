"""Numbers of whole replies: sums and means over the trained tokens of each.

Invariant: a reply is a run of trained tokens of one timeline with nothing between them, the same on every backbone,
however timelines are cut into rows and passes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def replies_of(mask_T: Tensor) -> Tensor:
    """[..., T] a number for each token that tells its reply; of tokens outside `mask_T` any. Each row along the last
    axis begins anew."""
    before = torch.zeros_like(mask_T)
    before[..., 1:] = mask_T[..., :-1]
    begins = (mask_T & ~before).reshape(-1)
    return begins.long().cumsum(0).reshape(mask_T.shape)


def sums(values_K: Tensor, replies_K: Tensor) -> Tensor:
    """[K] of each trained token, the sum over its reply."""
    _, place = torch.unique(replies_K, return_inverse=True)
    totals = torch.zeros(int(place.max()) + 1 if place.numel() else 0, dtype=values_K.dtype, device=values_K.device)
    return totals.index_add(0, place, values_K)[place]


def means(values_K: Tensor, replies_K: Tensor) -> Tensor:
    """[K] of each trained token, the mean over its reply."""
    return sums(values_K, replies_K) / sums(torch.ones_like(values_K), replies_K)
