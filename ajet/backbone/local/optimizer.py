"""AdamW over a flat buffer.

Adam: arXiv 1412.6980; decoupled weight decay: arXiv 1711.05101 (matrices only, not norms and biases). Invariant: the
same numbers as torch.optim.AdamW on float32 masters; elementwise in slices that fit a cache, all in the same room, so
that it needs no memory beyond the two moments. (torch's own fused step gives other bits.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ajet.backbone.local.flat_weights import FlatWeights, make_zeros

SLICE = 1 << 16
"""Elements a thread: what a step computes of them is 2 MB, a core's cache, and no operator is called for less."""
NORM_SLICE = 1 << 18
"""Elements whose squares are summed by themselves: another number gives other bits."""


class FlatAdamW:
    """Holds the two moments of `weights`, float32."""

    def __init__(
        self, weights: FlatWeights, *, betas: tuple[float, float], eps: float, weight_decay: float, clip: float | None
    ) -> None:
        self.weights, self.betas, self.eps, self.weight_decay, self.clip = weights, betas, eps, weight_decay, clip
        self.first, self.second = (
            make_zeros(weights.size, weights.values.device),
            make_zeros(weights.size, weights.values.device),
        )
        self.counts: dict[str, int] = {}
        """Steps that each part has taken, by its name."""

    @property
    def steps(self) -> int:
        """The number of optimizer steps of all parts."""
        return sum(self.counts.values())

    def step(self, gradients: Tensor, lr: float, *, part: str = "", at: tuple[int, int] | None = None) -> float:
        """Take one step on `gradients` [size], which are clipped to a global norm of `clip` and used up. Answers the
        norm before clipping; when it is not finite nothing changes. With `at` [start, stop): of these weights alone,
        called `part`, as if there were no others."""
        begin, end = at or (0, self.weights.size)
        norm = gradient_norm(gradients[begin:end])
        if not math.isfinite(norm):
            return norm
        self.counts[part] = steps = self.counts.get(part, 0) + 1
        scale = min(1.0, self.clip / (norm + 1e-6)) if self.clip is not None else 1.0
        decayed = min(max(self.weights.decayed, begin), end)
        size = SLICE * torch.get_num_threads() if gradients.device.type == "cpu" else NORM_SLICE
        room = torch.empty(3, min(size, end - begin), dtype=torch.float32, device=gradients.device)
        for start, stop in _split_range(begin, decayed, size):
            self.move_slice(gradients, start, stop, lr, scale, self.weight_decay, steps, room)
        for start, stop in _split_range(decayed, end, size):
            self.move_slice(gradients, start, stop, lr, scale, 0.0, steps, room)
        return norm

    def move_slice(
        self, gradients: Tensor, start: int, stop: int, lr: float, scale: float, decay: float, steps: int, room: Tensor
    ) -> None:
        beta1, beta2 = self.betas
        work, *others = room[:, : stop - start]
        gradient = gradients[start:stop]
        gradient = gradient if gradient.dtype == torch.float32 else work.copy_(gradient)
        if scale != 1.0:
            gradient.mul_(scale)
        first, second = self.first[start:stop], self.second[start:stop]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = torch.sqrt(second, out=work).div_(math.sqrt(1 - beta2**steps)).add_(self.eps)
        master = self.weights.master(start, stop, (others[0], others[1]))
        if decay:
            master.mul_(1 - lr * decay)
        master.addcdiv_(first, spread, value=-lr / (1 - beta1**steps))
        self.weights.set_master(start, stop, master)


def gradient_norm(gradients: Tensor) -> float:
    """The norm of a flat buffer; nan where it is not finite."""
    squares = [float(torch.linalg.vector_norm(part, dtype=torch.float32)) ** 2 for part in gradients.split(NORM_SLICE)]
    return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan


def _split_range(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]
