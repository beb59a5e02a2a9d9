"""`Backbone`, the interface of a backbone in one process: it owns engine and optimizer, and opens scorers.

A scorer uses the current weights, the reference weights or those of a checkpoint (DESIGN decision 4).

Invariant: readers, workflows, gateway, judges, timelines and records are the same objects on every backbone. `version`
counts the optimizer steps of a run; resumed runs continue the count. `score_samples` packs rows exactly as an update
does, because equal packing gives equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ajet.context_tracker.packing import PackedRow, pack, placed
from ajet.engine.adapters import Adapters
from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats


@dataclass(slots=True)
class Update:
    """The result of one `update`: version, metrics and logprob gap."""

    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Names as in docs/reference/metrics.md: loss, grad_norm, entropy, kl, clip_fraction, mismatch_kl, lr, seconds…"""
    fresh_gap: float | None = None
    """Mean gap between the trainer's logprobs and the recorded ones, in nats per token.

    Only tokens sampled by the version before the update count. None if the batch had no such token or no gap was
    measured.
    """


@dataclass(frozen=True, slots=True)
class RecomputedLoss:
    """A metric of an update that was computed a second time from recorded data, to compare it with the record."""

    value: float
    slope: float
    """Upper bound of the change in `value` if each underlying log-probability changes by one nat."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Time and memory of a rehearsed update."""

    seconds: float
    peak: int
    """Peak memory in bytes: of the GPU, or of this process since its start if there is no GPU."""


class Backbone(Protocol):
    """Owns the engine. A backbone that trains also owns the policy and its optimizer."""

    engine: TokenEngine | ChatEngine
    tokenizer: Any
    """A transformers tokenizer; None if the engine is a chat engine."""
    trains: bool

    @property
    def adapters(self) -> Adapters:
        """The model's adapters, each for its own agents. Empty unless several are configured."""
        ...

    @property
    def version(self) -> int:
        """Number of optimizer steps of this run."""
        ...

    @property
    def whole_version(self) -> int | None:
        """The version whose weights are loaded, bit for bit. None after an interrupted update has changed some."""
        ...

    def scorer(self, *, reference: bool = False) -> AbstractContextManager[Scorer]:
        """Yield a scorer of the current weights, or of the reference model if an algorithm or a loss needs it."""
        ...

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """Return the critic's values, shape [T] per sample: one before each trained token, 0 elsewhere.

        Raises:
            ValueError: the algorithm has no critic.
        """
        ...

    def update(self, batch: TrainingBatch) -> Update:
        """Take the optimizer steps of one training step (`mini_batch_num` of them) and update the engine's weights.

        An error restores the previous weights. After an interrupt, `whole_version` says which weights are loaded.
        """
        ...

    def rehearse(self, lengths: Sequence[int]) -> Rehearsal:
        """Run one forward and backward pass over synthetic samples of the given lengths. No state changes, bit for bit.

        Raises:
            UserError: the memory does not suffice.
        """
        ...

    def save(self, folder: Path) -> None:
        """Write model (Hugging Face layout), optimizer and RNG state into an existing empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore the state written by `save`, bit for bit, and the version with it."""
        ...

    def close(self) -> None:
        """Release the engine and all memory. Idempotent."""
        ...


class Scorer(Protocol):
    """Computes log-probabilities of one model as the trainer does."""

    dtype: str
    """Number format of the weights: float32, bfloat16…"""
    device: str

    @property
    def shares_prefixes(self) -> bool:
        """True if a row may hold trees of samples that share a prefix, so the prefix is computed once."""
        ...

    def logprobs(self, row: PackedRow, temperature: float = 1.0) -> Floats:
        """Return the log-probabilities of the row's targets, shape [K]."""
        ...

    def truncated(
        self, row: PackedRow, temperature: float, top_p: float, top_k: int, *, slack: float
    ) -> tuple[Floats, Floats]:
        """Return bounds of each target's log-probability after top_k and top_p: lowest [K] and highest [K].

        Rounding decides whether tokens at the border of top_p belong to the distribution, so only bounds are known.

        Args:
            slack: probability mass that rounding may move across the border of top_p.
        """
        ...


def score_samples(scorer: Scorer, samples: Sequence[Sample], *, tokens: int, temperature: float) -> list[Floats]:
    """Return log-probabilities, shape [T] per sample: computed where the sample's mask is 1, else 0.

    Args:
        tokens: maximum tokens of a packed row, as `micro_batch_tokens`.
    """
    rows = pack(samples, tokens, share_prefixes=scorer.shares_prefixes)
    return placed(samples, rows, [scorer.logprobs(row, temperature) for row in rows])
