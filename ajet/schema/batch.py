"""TrainingBatch: timelines with credit for a backbone.

Invariant (DESIGN decision 8): the loss is the sum over all trained tokens of `weight * loss_t`. Weights are set per
episode, so row borders do not matter and splitting a timeline changes neither loss nor gradient. Arrays are numpy until
a backbone reads them.
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
    """Samples of a group usually share their prompt; packing keeps them together."""
    advantages: Floats
    """[T] per token; only entries with mask 1 are read."""
    weight: float
    """Weight of each trained token's loss (1 / (E * T_e) for `sequence`, and so on)."""
    reference: Floats | None = None
    """[T] log-probabilities of the reference model, for a KL term."""
    values: Floats | None = None
    """[T] the critic's expected return before each trained token, if there is a critic."""
    returns: Floats | None = None
    """[T] the critic's target."""


@dataclass(slots=True)
class TrainingBatch:
    """The samples of one optimizer step or, split by `mini_batches`, of several."""

    step: int
    samples: list[Sample]
    temperature: float = 1.0
    """The rollout's sampling temperature; the trainer's logits are divided by it."""
    written: bool = False
    """True for given replies: no policy sampled them, so there are no log-probabilities to compare and none is
    stale."""
    metrics: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """The outcome of each episode of the batch's groups, by uuid."""

    @property
    def trained_tokens(self) -> int:
        """Tokens with mask 1 over all samples."""
        return self.trained_by_episode.total()

    @property
    def trained_by_episode(self) -> Counter[str]:
        """Trained tokens by the episode's uuid."""
        trained = Counter[str]()
        for sample in self.samples:
            trained[sample.episode] += sample.timeline.sampled
        return trained
