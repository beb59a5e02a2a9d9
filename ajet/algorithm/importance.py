"""Truncated importance sampling against the engine's log-probabilities.

The engine that samples and the trainer that differentiates are two programs; where they disagree, training is
off-policy without saying so. Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (Yao et al.,
2025, https://fengyao.notion.site/off-policy-rl): weigh each token's loss by min(trainer / engine, cap), a constant
in the gradient.
"""

from __future__ import annotations

from torch import Tensor


def truncated_weights(trainer_T: Tensor, engine_T: Tensor, cap: float) -> Tensor:
    """[T] min(exp(trainer - engine), cap), detached. `trainer_T`: the policy's logprobs before the update;
    `engine_T`: those of the distribution that was sampled from."""
    return (trainer_T.detach() - engine_T).exp().clamp(max=cap)
