"""What a backbone is in a process: who owns the engine and the optimizer (DESIGN decision 4), and who computes
log-probabilities as its trainer does: of the present weights, of the reference, or of a checkpoint.

Invariant: readers, workflows, gateway, judges, timelines and records are the same objects on every backbone; only these
contracts differ. `version` counts optimizer steps of this run, resumed runs continue the count. `score_samples` packs
rows as an update packs them, so that the same weights give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ajet.context_tracker.packing import pack, placed
from ajet.engine.adapters import Adapters
from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.context_tracker.packing import PackedRow


@dataclass(slots=True)
class Update:
    """The result of one `update`: its metrics and gaps."""

    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Names as in docs/reference/metrics.md: loss, grad_norm, entropy, kl, clip_fraction, mismatch_kl, lr, seconds…"""
    fresh_gap: float | None = None
    """Nats a token, on average, between the trainer's logprobs and the recorded ones of what the version that was
    updated is said to have sampled; None: there was nothing of it, or nobody looked."""


@dataclass(frozen=True, slots=True)
class RecomputedLoss:
    """A number of an update, computed a second time."""

    value: float
    slope: float
    """By how much it may move where each log-probability that it rests on moves by a nat, at most."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The time and memory that a rehearsed update took."""

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
    def adapters(self) -> Adapters:
        """The model's adapters, each for agents of its own; empty where there are not several."""
        ...

    @property
    def version(self) -> int:
        """Optimizer steps of this run so far."""
        ...

    @property
    def whole_version(self) -> int | None:
        """The version that the weights are of, to the bit; None where an update that was cut short has moved them."""
        ...

    def scorer(self, *, reference: bool = False) -> AbstractContextManager[Scorer]:
        """Within the block: of the present weights, or of the reference model, where an algorithm or a loss asks for
        one."""
        ...

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """[T] per sample: what the critic expects before each trained token, 0 elsewhere. Raises ValueError where the
        algorithm has none."""
        ...

    def update(self, batch: TrainingBatch) -> Update:
        """Take the optimizer steps of one training step (`mini_batch_num` of them) and give the engine the new
        weights. All or nothing: on an error the weights are those from before; after an interrupt `whole_version` says
        which they are."""
        ...

    def rehearse(self, lengths: Sequence[int]) -> Rehearsal:
        """Make one forward and backward pass over made-up samples of these lengths. Nothing is changed by it, bit for
        bit. Raises UserError where the memory does not suffice."""
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


class Scorer(Protocol):
    """Log-probabilities as the trainer computes them, of one model."""

    dtype: str
    """Of the weights: float32, bfloat16…"""
    device: str

    @property
    def shares_prefixes(self) -> bool:
        """Whether rows may hold trees."""
        ...

    def logprobs(self, row: PackedRow, temperature: float = 1.0) -> Floats:
        """[K] of the row's targets."""
        ...

    def truncated(
        self, row: PackedRow, temperature: float, top_p: float, top_k: int, *, slack: float
    ) -> tuple[Floats, Floats]:
        """[K] the lowest and the highest log-probability that the row's targets can have after top_k and top_p, where
        rounding may move `slack` of the mass over top_p's border."""
        ...


class RecordedScorer(Scorer, Protocol):
    """A scorer at the weights of one policy version, without a trainer."""

    def __init__(self, experiment: Experiment, checkpoint: Path | None) -> None:
        """Loads the weights in `checkpoint`, or, with None, with those that the run began with. Raises UserError."""
        ...

    @staticmethod
    def version_of(checkpoint: Path) -> int:
        """The policy version in a checkpoint. Raises UserError where that is not known."""
        ...

    def reference(self, samples: Sequence[Sample], temperature: float) -> list[Floats]:
        """[T] per sample: of the model that training began with, whose weights these must be but for adapters."""
        ...

    def losses(
        self, batch: TrainingBatch, *, version: int, reference: Sequence[Floats] | None
    ) -> dict[str, RecomputedLoss]:
        """`loss` and, with a KL term, `kl` of an update of these weights by one optimizer step over the batch, as its
        trainer computes them. `version`: that of the weights; `reference`: [T] per sample, read with a KL term."""
        ...

    def widen(self) -> bool:
        """Compute in float32 from here on, with the same weights; False where there is no room: then it is spent."""
        ...


def score_samples(scorer: Scorer, samples: Sequence[Sample], *, tokens: int, temperature: float) -> list[Floats]:
    """[T] per sample, where its mask is 1, else 0. `tokens`: of a row, as `micro_batch_tokens` says."""
    rows = pack(samples, tokens, share_prefixes=scorer.shares_prefixes)
    return placed(samples, rows, [scorer.logprobs(row, temperature) for row in rows])
