"""TrainingBatch: timelines with credit for a backbone.

Invariant (DESIGN decision 8): the loss is the sum over all trained tokens of `weight * loss_t`. Weights are set per
episode, so row borders do not matter and splitting a timeline changes neither loss nor gradient. Arrays are numpy until
a backbone reads the batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Floats
from ajet.schema.episode import Outcome, Timeline


@dataclass(slots=True)
class Sample:
    """One timeline of an episode to train on, with the advantage of each token."""

    timeline: Timeline
    episode: str
    group: int
    """Index of the group. Packing keeps samples of a group in neighbouring rows, because prompts are usually shared."""
    advantages: Floats
    """[T] per token. Only entries with mask 1 are read."""
    weight: float
    """Weight of each trained token's loss (1 / (E * T_e) for `sequence`, and so on)."""
    reference: Floats | None = None
    """[T] log-probabilities of the reference model, for a KL term."""
    values: Floats | None = None
    """[T] the critic's expected return before each trained token, if there is a critic."""
    returns: Floats | None = None
    """[T] the critic's target returns."""
    observed: Floats | None = None
    """[T] weights of the cross-entropy of tokens that the environment wrote, 0 at other tokens. None: no such loss."""

    @property
    def targets(self) -> npt.NDArray[np.bool_]:
        """[T] True at tokens with a loss: the sampled tokens, and the observed tokens with a weight."""
        mask = self.timeline.mask
        return mask if self.observed is None else mask | (self.observed != 0)


@dataclass(slots=True)
class TrainingBatch:
    """The samples of an optimizer step, or of several steps (split by `split_mini_batches`)."""

    step: int
    samples: list[Sample]
    temperature: float = 1.0
    """The rollout's sampling temperature. The trainer divides its logits by the temperature."""
    written: bool = False
    """True for given replies. No policy sampled the replies, so old log-probabilities and staleness do not exist."""
    metrics: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """The outcome of each episode of the batch's groups, by uuid."""

    @property
    def trained_tokens(self) -> int:
        """Number of tokens that are trained, over all samples."""
        return self.trained_by_episode.total()

    @property
    def trained_by_episode(self) -> Counter[str]:
        """Number of trained tokens by the uuid of their episode."""
        token_counts = Counter[str]()
        for sample in self.samples:
            token_counts[sample.episode] += sample.timeline.sampled
        return token_counts
