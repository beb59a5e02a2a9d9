"""The loss of a critic's value: its squared error, of values that do not run away within a training step.

PPO as it is implemented since OpenAI's baselines (The 37 Implementation Details of PPO, 2022, detail 9) and in verl:
0.5 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2), R the return, c = `critic.cliprange_value`. Weights are those
of the policy loss (DESIGN decision 8).
"""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values_T: Tensor, old_T: Tensor, returns_T: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """[T] losses, differentiable in `values_T`, and [T] booleans: where the bound cut the gradient off. `old_T`: the
    values before the update."""
    loss = (values_T - returns_T) ** 2
    if clip is None:
        return 0.5 * loss, torch.zeros_like(loss, dtype=torch.bool)
    held = (torch.minimum(torch.maximum(values_T, old_T - clip), old_T + clip) - returns_T) ** 2
    return 0.5 * torch.maximum(loss, held), held.detach() > loss.detach()
