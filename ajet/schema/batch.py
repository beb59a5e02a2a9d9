"""TrainingBatch: timelines with credit, ready for a backbone.

Invariant (DESIGN decision 8): the loss is the sum over all trained tokens of `weight * loss_t`; weights are set per
episode, so row borders never enter and splitting a timeline leaves loss and gradient unchanged. Numpy until it
reaches a backbone. The algorithm room writes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ajet.schema.call import Floats
from ajet.schema.episode import Outcome
from ajet.schema.timeline import Timeline


@dataclass(slots=True)
class Sample:
    """One timeline to train on, with its advantages."""

    timeline: Timeline
    episode: str
    group: int
    """Samples of one group usually share their prompt: packing keeps them together."""
    advantages: Floats
    """[T] per token; only entries with mask 1 are read."""
    weight: float
    """Weight of each trained token's loss (1 / (E * T_e) for `sequence`, and so on)."""
    reference: Floats | None = None
    """[T] the reference model's logprobs, when a KL term asks for them."""
    values: Floats | None = None
    """[T] what the critic expected before each trained token, where there is a critic."""
    returns: Floats | None = None
    """[T] what it is to expect there; likewise."""


@dataclass(slots=True)
class TrainingBatch:
    """The samples of one optimizer step or, split by `mini_batches`, of several."""

    step: int
    samples: list[Sample]
    temperature: float = 1.0
    """The rollout's sampling temperature; the trainer's logits are divided by it."""
    written: bool = False
    """Its tokens were given to be learned from, and no policy sampled them: there are no logprobs to compare with, and
    none is stale."""
    metrics: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """What becomes of each episode of the batch's groups, by its uuid."""

    @property
    def trained_tokens(self) -> int:
        """Tokens with mask 1 over all samples."""
        return self.trained_by_episode.total()

    @property
    def trained_by_episode(self) -> Counter[str]:
        """The number of sampled tokens that are trained on, by the episode's uuid."""
        trained = Counter[str]()
        for sample in self.samples:
            trained[sample.episode] += sample.timeline.sampled
        return trained
