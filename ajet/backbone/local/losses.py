"""The loss of a row's targets, and its metrics.

The loss of a trained token is its weight times `ajet.algorithm.token_loss`. Inputs are stored in one array per quantity
over all samples of an optimizer step; a row's targets index them by sample and offset.

Old policy of the ratio: with one mini batch the update is on-policy, old logprobs equal the current ones and the ratio
is exactly 1. With several mini batches, or a loss or weight over complete replies, a separate pass computes the old
logprobs before the first mini batch. `is_cap` weights tokens whose engine logprobs differ (other engine or older
weights). Stale tokens were sampled by a version before the one being updated; they are counted but not treated
differently. A sample is fresh if the version being updated sampled every trained token: after an update in mid-sample,
an engine may hold keys and values of earlier weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ajet.algorithm.loss_terms import number_replies
from ajet.algorithm.token_loss import ReplyStatistics, TokenLoss, TokenLossTerms
from ajet.schema.batch import Sample
from ajet.schema.call import Floats

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ajet.context_tracker.packing import Indices, Targets


def summed_fields(kind: type[DataclassInstance], tallies: Sequence[DataclassInstance]) -> dict[str, Any]:
    """Return the sum of each field over several tallies of the same class, by field name."""
    return {
        tally_field.name: sum(getattr(tally, tally_field.name) for tally in tallies) for tally_field in fields(kind)
    }


@dataclass(slots=True)
class LossTally:
    """Sums over trained tokens of one optimizer step or of a complete training step."""

    steps: int = 1  # optimizer steps
    tokens: int = 0
    loss: float = 0.0
    """Sum over optimizer steps; each step's weights make its part a mean over the step."""
    entropy: float = 0.0
    kl: float = 0.0
    clipped: int = 0
    gap: float = 0.0
    gap_max: float = 0.0
    compared: int = 0
    fresh: int = 0
    fresh_gap: float = 0.0
    capped: int = 0
    stale: int = 0
    stale_weight: float = 0.0
    stale_capped: int = 0
    teacher_kl: float = 0.0
    observed: int = 0
    observed_loss: float = 0.0
    """Sum of -log p over the observed tokens, without their weights."""

    @classmethod
    def merge(cls, tallies: Sequence[LossTally]) -> LossTally:
        """Return the combined tally of all given tallies."""
        merged = cls(**summed_fields(cls, tallies))
        merged.gap_max = max((tally.gap_max for tally in tallies), default=0.0)
        return merged

    def means(self) -> dict[str, float]:
        """Return the metrics as means over tokens. The metric `loss` is the mean over optimizer steps."""
        tokens = max(self.tokens, 1)
        means = {
            "loss": self.loss / max(self.steps, 1),
            "entropy": self.entropy / tokens,
            "clip_fraction": self.clipped / tokens,
        }
        means |= {"kl": self.kl / tokens, "is_capped_fraction": self.capped / tokens}
        if self.observed:
            means["observation_loss"] = self.observed_loss / self.observed
        if self.compared:
            means |= {"mismatch_kl": self.gap / self.compared, "logprob_gap_max": self.gap_max}
        return means


@dataclass(slots=True)
class StepLoss:
    """The losses of one optimizer step over `samples`.

    `old` and `present` are the policy's log-probabilities before the training step and before this optimizer step, [T]
    per sample.
    """

    samples: Sequence[Sample]
    tokens: TokenLoss
    scale: float
    compare_engine: bool
    """True if trainer and engine logprobs are comparable: no truncation by top_p or top_k."""
    old: Sequence[Floats] | None = None
    present: Sequence[Floats] | None = None
    """The policy's logprobs before this optimizer step; None if equal to `old`."""
    version: int = 0
    """Policy version before the update."""
    written: bool = False
    """True for written replies, as in `TrainingBatch.written`."""
    tally: LossTally = field(default_factory=LossTally)
    _sample_starts: Indices = field(init=False)
    _advantages: Floats = field(init=False)
    _weights: Floats = field(init=False)
    _engine: Floats = field(init=False)
    _stale: npt.NDArray[np.bool_] = field(init=False)
    _fresh: npt.NDArray[np.bool_] = field(init=False)
    _old_logprobs: Floats | None = field(init=False)
    _reference_logprobs: Floats | None = field(init=False)
    _ages: Floats | None = field(init=False)
    _replies: tuple[Floats | None, Floats | None] = field(init=False)
    _is_chosen: npt.NDArray[np.bool_] | None = field(init=False)
    _observed: Floats | None = field(init=False)

    def __post_init__(self) -> None:
        """Concatenate each quantity over all samples, so that a row's targets can index it by sample and offset."""
        lengths = [sample.timeline.ids.size for sample in self.samples]
        self._sample_starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        self._advantages = np.concatenate([sample.advantages for sample in self.samples])
        self._weights = np.repeat([sample.weight * self.scale for sample in self.samples], lengths).astype(np.float32)
        self._engine = np.concatenate([sample.timeline.logprobs for sample in self.samples])
        # Given replies were sampled by no version of this policy, so none of their tokens counts as stale.
        oldest = np.iinfo(np.int32).min if self.written else self.version
        self._stale = np.concatenate([sample.timeline.versions < oldest for sample in self.samples])
        fresh = [bool((each.timeline.versions[each.timeline.mask] == self.version).all()) for each in self.samples]
        self._fresh = np.repeat(fresh, lengths)
        self._old_logprobs = np.concatenate(self.old) if self.old is not None else None
        references = [sample.reference for sample in self.samples if sample.reference is not None]
        self._reference_logprobs = np.concatenate(references) if len(references) == len(self.samples) else None
        bounds = self.tokens.bounds
        ages = [self.version - sample.timeline.versions for sample in self.samples]
        self._ages = np.concatenate(ages).astype(np.float32) if bounds is not None and bounds.needs_ages else None
        self._replies = self._compute_reply_statistics() if self.tokens.over_replies else (None, None)
        self._is_chosen = self._choose_tokens() if self.tokens.policy.over_batch else None
        observed = [sample.observed for sample in self.samples if sample.observed is not None]
        self._observed = np.concatenate(observed) * np.float32(self.scale) if observed else None

    def _compute_reply_statistics(self) -> tuple[Floats | None, Floats | None]:
        """Compute `ReplyStatistics` over all samples, because a row holds only some tokens of a reply.

        Raises:
            ValueError: `old` is missing.
        """
        if self._old_logprobs is None:
            raise ValueError("a loss over complete replies needs the policy's log-probabilities before the update")
        mask = torch.from_numpy(np.concatenate([sample.timeline.mask for sample in self.samples]))
        mask_S = [torch.from_numpy(sample.timeline.mask) for sample in self.samples]
        token_offsets = np.cumsum([0] + [sample.timeline.mask.size for sample in self.samples])
        replies = torch.cat(
            [
                number_replies(mask_of_sample) + int(start)
                for mask_of_sample, start in zip(mask_S, token_offsets, strict=False)
            ]
        )
        present = np.concatenate(self.present) if self.present is not None else self._old_logprobs
        present_logprobs, old_logprobs, engine_logprobs = (
            torch.from_numpy(values)[mask] for values in (present, self._old_logprobs, self._engine)
        )
        statistics = self.tokens.compute_reply_statistics(
            present_logprobs, old_logprobs, engine_logprobs, replies[mask]
        )

        def spread(values: Tensor | None) -> Floats | None:
            """Return values of the trained tokens as an array over all tokens, 0 elsewhere."""
            if values is None:
                return None
            all_values = np.zeros(mask.numel(), np.float32)
            all_values[mask.numpy()] = values.numpy()
            return all_values

        return spread(statistics.drift), spread(statistics.gaps)

    def _choose_tokens(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the tokens selected by the loss, over all samples.

        Raises:
            ValueError: `old` is missing.
        """
        if self._old_logprobs is None:
            raise ValueError("a loss that chooses among tokens needs the policy's log-probabilities before the update")
        chosen = np.concatenate([sample.timeline.mask for sample in self.samples])
        inputs = self._old_logprobs[chosen].astype(np.float64), self._advantages[chosen].astype(np.float64)
        chosen[chosen] = self.tokens.policy.choose(*inputs, np.random.default_rng([self.version, chosen.size]))
        return chosen

    @property
    def needs_reference(self) -> bool:
        """True if a KL term needs reference logprobs per row, because the samples have none."""
        return self.tokens.kl_coef is not None and self._reference_logprobs is None

    def row(self, targets: Targets, device: torch.device, reference_K: Tensor | None) -> RowLoss:
        """Return the loss of one row's targets.

        Args:
            targets: The trained tokens of the row [K].
            reference_K: The reference model's log-probabilities [K]. None: those of the samples, if any.
        """
        at = self._sample_starts[targets.sample] + targets.offset

        def pick(values: npt.NDArray[np.float32]) -> Tensor:
            return torch.from_numpy(values[at]).to(device)

        if reference_K is None and self._reference_logprobs is not None:
            reference_K = pick(self._reference_logprobs)
        drift, gaps = (pick(values) if values is not None else None for values in self._replies)
        chosen = torch.from_numpy(self._is_chosen[at]).to(device) if self._is_chosen is not None else None
        return RowLoss(
            self,
            pick(self._advantages),
            pick(self._weights),
            pick(self._engine),
            self._stale[at],
            self._fresh[at],
            pick(self._old_logprobs) if self._old_logprobs is not None else None,
            reference_K if self.tokens.kl_coef is not None else None,
            pick(self._ages) if self._ages is not None else None,
            ReplyStatistics(drift, gaps, chosen),
            pick(self._observed) if self._observed is not None else None,
        )


@dataclass(slots=True)
class RowLoss:
    """The loss of one row, called with the logprobs of some targets. Shapes: [K]."""

    step: StepLoss
    advantages: Tensor
    weights: Tensor
    engine: Tensor
    stale: npt.NDArray[np.bool_]
    fresh: npt.NDArray[np.bool_]
    old: Tensor | None
    reference: Tensor | None
    ages: Tensor | None
    replies: ReplyStatistics
    observed: Tensor | None = None
    """Weights of the targets that the environment wrote, 0 at sampled targets. None: all targets are sampled."""

    def __call__(self, logprobs_C: Tensor, entropy_C: Tensor, target_range: slice) -> Tensor:
        """Return the summed loss of some of the row's targets, and add them to the tally.

        Args:
            logprobs_C: Log-probabilities of the targets under the current weights [C].
            entropy_C: Entropies of their distributions [C].
            target_range: The range of targets within the row.
        """
        if self.observed is None:
            return self._sum_policy_losses(logprobs_C, entropy_C, target_range)
        weights = self.observed[target_range]
        sampled = weights == 0
        total = -(weights * logprobs_C).sum()
        tally = self.step.tally
        tally.loss += float(total.detach())
        tally.observed += int((~sampled).sum())
        tally.observed_loss -= float(logprobs_C.detach()[~sampled].sum())
        places = np.arange(target_range.start, target_range.stop)[sampled.cpu().numpy()]
        return total + self._sum_policy_losses(logprobs_C[sampled], entropy_C[sampled], places)

    def _sum_policy_losses(self, logprobs_C: Tensor, entropy_C: Tensor, target_range: slice | Indices) -> Tensor:
        """Return the summed policy loss of some sampled targets, and add their metrics to the tally.

        Args:
            logprobs_C: Log-probabilities of the targets under the current weights [C].
            entropy_C: Entropies of their distributions [C].
            target_range: The range or the indices of the targets within the row.
        """
        tally = self.step.tally
        present = logprobs_C.detach()
        # Without a separate pass the update is on-policy: the old log-probabilities are the current ones.
        old = self.old[target_range] if self.old is not None else present
        terms = self.step.tokens(
            logprobs_C,
            old,
            self.advantages[target_range],
            engine_T=self.engine[target_range],
            reference_T=self.reference[target_range] if self.reference is not None else None,
            ages_T=self.ages[target_range] if self.ages is not None else None,
            replies=ReplyStatistics(*(values[target_range] if values is not None else None for values in self.replies)),
        )
        if terms.capped is not None:
            tally.capped += int(terms.capped.sum())
        if terms.divergence is not None:
            tally.kl += float(terms.divergence.detach().sum())
        self._count_stale(terms, target_range)
        total = (self.weights[target_range] * terms.loss).sum()
        tally.tokens += present.numel()
        tally.loss += float(total.detach())
        tally.entropy += float(entropy_C.sum())
        tally.clipped += int(terms.clipped.sum())
        if self.step.compare_engine:
            gap = self.engine[target_range] - old
            tally.compared += gap.numel()
            tally.gap += float(gap.sum())
            tally.gap_max = max(tally.gap_max, float(gap.abs().max()))
            if (fresh := np.flatnonzero(self.fresh[target_range])).size:
                tally.fresh += fresh.size
                tally.fresh_gap += float(gap[torch.from_numpy(fresh).to(gap.device)].abs().sum())
        return total

    def weigh_divergence(self, divergence_C: Tensor, target_range: slice, coefficient: float) -> Tensor:
        """Return the summed loss of the policy's divergence from a teacher, and add it to the tally.

        Args:
            divergence_C: The divergence at some of the row's targets [C].
            target_range: The range of targets within the row.
        """
        total = coefficient * (self.weights[target_range] * divergence_C).sum()
        self.step.tally.teacher_kl += float(divergence_C.detach().sum())
        self.step.tally.loss += float(total.detach())
        return total

    def _count_stale(self, terms: TokenLossTerms, target_range: slice | Indices) -> None:
        """Add the tokens that an older policy version sampled to the tally."""
        stale_indices = np.flatnonzero(self.stale[target_range])
        if not stale_indices.size:
            return
        tally = self.step.tally
        tally.stale += stale_indices.size
        if terms.weights is None or terms.capped is None:
            tally.stale_weight += stale_indices.size
            return
        chosen = torch.from_numpy(stale_indices).to(terms.weights.device)
        tally.stale_weight += float(terms.weights[chosen].sum())
        tally.stale_capped += int(terms.capped[chosen].sum())
