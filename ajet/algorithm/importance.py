"""Truncated importance sampling against the engine's log-probabilities.

The engine that samples and the trainer that differentiates are two programs; where they disagree, or where the engine
had earlier weights (stale tokens), training is off-policy without saying so. Your Efficient RL Framework Secretly
Brings You Off-Policy RL Training (Yao et al., 2025, https://fengyao.notion.site/off-policy-rl): weigh each token's loss
by min(trainer / engine, cap), a constant in the gradient. For staleness this is the decoupled objective of AReaL
(arXiv 2505.24298): the ratio that is clipped stays that of the policy to the one before the update.
"""

from __future__ import annotations

from torch import Tensor


def truncated_weights(trainer_T: Tensor, engine_T: Tensor, cap: float) -> Tensor:
    """[T] min(exp(trainer - engine), cap), detached. `trainer_T`: the policy's logprobs before the update;
    `engine_T`: those of the distribution that was sampled from."""
    return (trainer_T.detach() - engine_T).exp().clamp(max=cap)


def stale_metrics(tokens: int, stale: int, weight: float, capped: int) -> dict[str, float]:
    """Of an update over `tokens` trained tokens, of which earlier weights sampled `stale`, with importance weights that
    add up to `weight`, of which `capped` were held at the cap. Nothing where none was stale."""
    if not stale:
        return {}
    return {
        "stale_fraction": stale / tokens,
        "stale_is_weight_mean": weight / stale,
        "stale_is_capped_fraction": capped / stale,
    }
