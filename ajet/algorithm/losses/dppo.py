"""DPPO: a bound on the divergence of the sampled token replaces the bound on its ratio.

Rethinking the Trust Region in LLM Reinforcement Learning, arXiv 2602.04879: with p the present and q the old
probability of the token, a token is left out if its advantage moves p further from q and the divergence of the two
distributions "this token or another" exceeds `clip_high` (A > 0, p > q) or `clip_low` (A < 0, p < q):

    dppo_tv  |p - q|                                            (equation 13)
    dppo_kl  q log(q / p) + (1 - q) log((1 - q) / (1 - p))      (equation 14)

The ratio of a rare token may therefore be large, while a frequent token is bounded more tightly than by its ratio.
Section 5.4: the ratio is truncated at a large value, here `clip_dual`. The paper compares with the policy that sampled
(`old_policy: behaviour`).
"""

from __future__ import annotations

from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss

PAPER = "DPPO, arXiv 2602.04879"
ROUNDING = 1e-8
"""Added to 1 - p and 1 - q, so that a certain token has a finite divergence."""


class DppoTvLoss(PolicyLoss):
    """-sg(ratio) A log p for tokens within the bound on the total variation."""

    formula = (
        "−sg(min(ρ, clip_dual))·A·log π; 0 where A > 0 and π − π_old > clip_high, or A < 0 and π_old − π > clip_low"
    )
    paper = f"{PAPER}, equation 13"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, 0 beyond the bound on |p - q|, and [T] booleans, True for tokens left out."""
        moved = tokens.logprobs.detach().exp() - tokens.old.exp()
        return compute_bounded_loss(self, tokens, moved.abs(), moved)


class DppoKlLoss(PolicyLoss):
    """-sg(ratio) A log p for tokens within the bound on the KL divergence."""

    formula = (
        "that of `dppo_tv`, with the divergence π_old·log(π_old / π) + (1 − π_old)·log((1 − π_old) / (1 − π)) in place "
        "of the difference"
    )
    paper = f"{PAPER}, equation 14"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, 0 beyond the bound on KL(old || present), and [T] booleans, True for tokens left out."""
        present, old = tokens.logprobs.detach(), tokens.old
        p, q = present.exp(), old.exp()
        # The divergence between two distributions over "this token or any other".
        other_tokens_part = (1 - q) * ((1 - q + ROUNDING) / (1 - p + ROUNDING)).log()
        return compute_bounded_loss(self, tokens, q * (old - present) + other_tokens_part, p - q)


def compute_bounded_loss(
    loss: PolicyLoss, tokens: LossInputs, divergence_T: Tensor, moved_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Return [T] losses -sg(ratio) A log p, 0 for tokens left out, and [T] booleans, True for those.

    A token is left out if its advantage moves it further from the old policy, beyond `clip_low` or `clip_high`.

    Args:
        divergence_T: Divergence between the present and the old policy at each token.
        moved_T: Present less old probability of each token.
    """
    settings = loss.settings
    above = (tokens.advantages > 0) & (moved_T > 0) & (divergence_T > settings.clip_high)
    below = (tokens.advantages < 0) & (moved_T < 0) & (divergence_T > settings.clip_low)
    outside = above | below
    ratio = (tokens.logprobs.detach() - tokens.old).exp()
    if settings.clip_dual is not None:
        ratio = ratio.clamp(max=settings.clip_dual)
    weighed = -ratio * tokens.advantages * tokens.logprobs
    return weighed.masked_fill(outside, 0.0), outside
