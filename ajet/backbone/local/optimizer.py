"""AdamW over a flat buffer.

Adam: arXiv 1412.6980; decoupled weight decay: arXiv 1711.05101 (matrices only, not norms and biases).

Invariant: the numbers equal torch.optim.AdamW on float32 masters. The step works elementwise on cache-sized slices and
reuses one small buffer, so memory beyond the two moments stays constant. (torch's fused step gives other bits.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ajet.backbone.local.flat_weights import FlatWeights, make_zeros

SLICE = 1 << 16
"""Elements per thread: one slice takes 2 MB, a core's cache, and an operator call still pays off."""
NORM_SLICE = 1 << 18
"""Elements per partial sum of squares. Changing it changes the last bits of the gradient norm."""


class FlatAdamW:
    """AdamW over all weights in one buffer. It holds the two moments in float32."""

    def __init__(
        self, weights: FlatWeights, *, betas: tuple[float, float], eps: float, weight_decay: float, clip: float | None
    ) -> None:
        """Start with moments of 0.

        Args:
            betas: Decay of the first and second moment.
            clip: Maximum global norm of the gradients. None: no clipping.
        """
        self.weights = weights
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.clip = clip
        self.first, self.second = (
            make_zeros(weights.size, weights.values.device),
            make_zeros(weights.size, weights.values.device),
        )
        self.counts: dict[str, int] = {}
        """Name of a range of weights -> its number of optimizer steps, for Adam's bias correction."""

    @property
    def steps(self) -> int:
        """The number of optimizer steps of all parts."""
        return sum(self.counts.values())

    def step(self, gradients: Tensor, lr: float, *, part: str = "", at: tuple[int, int] | None = None) -> float:
        """Take one step on `gradients`, shape [size], clipped to global norm `clip`. The buffer is overwritten.

        Args:
            part: name of the range `at`, for its step count.
            at: range [start, stop) of the weights to update; all other weights stay unchanged and do not count in the
                norm.

        Returns:
            The norm before clipping. If the norm is not finite, no weight changes.
        """
        begin, end = at or (0, self.weights.size)
        norm = gradient_norm(gradients[begin:end])
        if not math.isfinite(norm):
            return norm
        self.counts[part] = steps = self.counts.get(part, 0) + 1
        scale = min(1.0, self.clip / (norm + 1e-6)) if self.clip is not None else 1.0
        decayed = min(max(self.weights.decayed, begin), end)
        size = SLICE * torch.get_num_threads() if gradients.device.type == "cpu" else NORM_SLICE
        scratch = torch.empty(3, min(size, end - begin), dtype=torch.float32, device=gradients.device)
        for start, stop in _split_range(begin, decayed, size):
            self.move_slice(gradients, start, stop, lr, scale, self.weight_decay, steps, scratch)
        for start, stop in _split_range(decayed, end, size):
            self.move_slice(gradients, start, stop, lr, scale, 0.0, steps, scratch)
        return norm

    def move_slice(
        self, gradients: Tensor, start: int, stop: int, lr: float, scale: float, decay: float, steps: int, room: Tensor
    ) -> None:
        """Take the AdamW step on the weights [start, stop).

        Args:
            gradients: Gradients of the whole buffer [size], overwritten.
            scale: Factor of the gradients that clips their norm.
            decay: Weight decay of this slice.
            steps: Number of this step, for the bias correction.
            room: Float32 buffers for intermediate results.
        """
        beta1, beta2 = self.betas
        work, *master_buffers = room[:, : stop - start]
        gradient = gradients[start:stop]
        gradient = gradient if gradient.dtype == torch.float32 else work.copy_(gradient)
        if scale != 1.0:
            gradient.mul_(scale)
        first, second = self.first[start:stop], self.second[start:stop]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = torch.sqrt(second, out=work).div_(math.sqrt(1 - beta2**steps)).add_(self.eps)
        master = self.weights.master(start, stop, (master_buffers[0], master_buffers[1]))
        if decay:
            master.mul_(1 - lr * decay)
        master.addcdiv_(first, spread, value=-lr / (1 - beta1**steps))
        self.weights.set_master(start, stop, master)


def gradient_norm(gradients: Tensor) -> float:
    """Return the norm of a flat buffer, or nan if an element is not finite."""
    squares = [
        float(torch.linalg.vector_norm(chunk, dtype=torch.float32)) ** 2 for chunk in gradients.split(NORM_SLICE)
    ]
    return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan


def _split_range(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Return [start, stop) as consecutive ranges of at most `size` elements."""
    return [(begin, min(begin + size, stop)) for begin in range(start, stop, size)]
