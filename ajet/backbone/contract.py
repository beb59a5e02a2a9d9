"""What a backbone is: who owns the engine and the optimizer (DESIGN decision 4).

Invariant: readers, workflows, gateway, judges, timelines and records are the same objects on every backbone; only
this contract differs. `version` counts optimizer steps of this run, resumed runs continue the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats


@dataclass(slots=True)
class Update:
    """What one `update` did."""

    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Names as in docs/metrics.md: loss, grad_norm, entropy, kl, clip_fraction, mismatch_kl, lr, seconds…"""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsed update took."""

    tokens: int
    seconds: float
    peak: int
    """Bytes: of a GPU's memory, else of this process since it began."""


class Backbone(Protocol):
    """Owns the engine, and, where it trains, the policy and its optimizer."""

    engine: TokenEngine | ChatEngine
    tokenizer: Any
    """A transformers tokenizer; None when the engine is a chat engine."""
    trains: bool

    @property
    def version(self) -> int:
        """Optimizer steps of this run so far."""
        ...

    def logprobs(
        self, samples: list[Sample], *, reference: bool = False, temperature: float | None = None
    ) -> list[Floats]:
        """[T] per sample at mask-1 positions (0 elsewhere), of the policy or of the reference model; `temperature` None
        is the rollout's."""
        ...

    def update(self, batch: TrainingBatch) -> Update:
        """Take the optimizer steps of one training step (`mini_batch_num` of them) and give the engine the new
        weights. All or nothing: on an error the weights are those from before."""
        ...

    def rehearse(self, lengths: Sequence[int]) -> Rehearsal:
        """One forward and backward pass over made-up samples of these lengths. Nothing is changed by it, bit for bit.
        Raises UserError where the memory does not suffice."""
        ...

    def save(self, folder: Path) -> None:
        """Write model (Hugging Face layout), optimizer and RNG into an existing empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, bit for bit, and the version with it."""
        ...

    def close(self) -> None:
        """Release engine and memory. Idempotent."""
        ...
