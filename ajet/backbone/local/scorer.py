"""The trainer's forward pass as a scorer, for a trainer's weights or for a policy version without a trainer.

Invariant: model, weights and packing equal those of an update of the same version, bit for bit. No optimizer, engine or
gradient is involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ajet.algorithm import open_algorithm
from ajet.algorithm.loss_terms import estimate_kl
from ajet.algorithm.token_loss import TokenLoss
from ajet.algorithm.weights import compute_mini_batch_scale
from ajet.backbone.contract import RecomputedLoss, score_samples
from ajet.backbone.local import checkpoint as checkpoints
from ajet.backbone.local.lora import merge_saved_adapters
from ajet.backbone.local.losses import StepLoss
from ajet.backbone.local.machine import bound_kernel_caches, choose_device, choose_dtype
from ajet.backbone.local.policy import LocalPolicy
from ajet.context_tracker.packing import PackedRow, pack, placed
from ajet.engine.thread_count import choose_threads
from ajet.schema.batch import TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ajet.backbone.local.packed_forward import PackedForward
    from ajet.config import Experiment
    from ajet.schema.batch import Sample


class ForwardScorer:
    """Computes log-probabilities with a loaded model, as the trainer does.

    Args:
        weights: any of the model's weights, for dtype and device.
    """

    def __init__(self, forward: PackedForward, weights: Tensor) -> None:
        self.forward = forward
        self.dtype = str(weights.dtype).removeprefix("torch.")
        self.device = weights.device.type

    @property
    def shares_prefixes(self) -> bool:
        """True if a row may hold trees of samples that share a prefix, so the prefix is computed once."""
        return self.forward.packed

    def logprobs(self, row: PackedRow, temperature: float = 1.0) -> Floats:
        """Return the log-probabilities of the row's targets, shape [K]."""
        logprobs: Floats = self.forward.logprobs(row, temperature).cpu().numpy()
        return logprobs

    def truncated(
        self, row: PackedRow, temperature: float, top_p: float, top_k: int, *, slack: float
    ) -> tuple[Floats, Floats]:
        """Return bounds of each target's log-probability after top_k and top_p: lowest [K] and highest [K].

        Rounding decides whether tokens at the border of top_p belong to the distribution, so only bounds are known.

        Args:
            slack: probability mass that rounding may move across the border of top_p.
        """
        low, high = self.forward.truncated(row, temperature, top_p, top_k, slack=slack)
        return low.cpu().numpy(), high.cpu().numpy()


class LocalScorer(ForwardScorer):
    """Scores with the experiment's model and the weights in `checkpoint`, or the model's own weights without one.

    Raises:
        UserError: the model or the checkpoint cannot be loaded.
    """

    def __init__(self, experiment: Experiment, checkpoint: Path | None = None) -> None:
        """Load the model, then the checkpoint's weights in the number format in which they were trained."""
        from ajet.engine.model_source import locate_configured_model
        from ajet.engine.models import load_model

        config = experiment.ajet
        if config.model.path is None:
            raise UserError("The run's model.path is not set.", where="ajet.model.path")
        device = choose_device(config.trainer_common.device)
        bound_kernel_caches()
        choose_threads(config.trainer_common.threads, device, deterministic=config.rollout.deterministic)
        name = checkpoints.read_dtype(checkpoint) if checkpoint is not None else config.model.dtype
        source = locate_configured_model(config, experiment.base)
        model = load_model(
            source, dtype=choose_dtype(name, device), device=device, max_model_len=config.rollout.max_model_len
        )
        lora, start = config.trainer_common.lora, source.folder if checkpoint is None else None
        if start is not None:
            lora = merge_saved_adapters(lora, start)
        self._experiment = experiment
        self._policy = LocalPolicy(model, lora=lora, reference=False, start=start)
        if checkpoint is not None:
            checkpoints.read_weights(checkpoint, self._policy)
        super().__init__(self._policy.forward, self._policy.weights.values)

    @staticmethod
    def version_of(checkpoint: Path) -> int:
        """Return the policy version in a checkpoint.

        Raises:
            UserError: the folder was not written by the local backbone.
        """
        return checkpoints.read_version(checkpoint)

    def reference(self, samples: Sequence[Sample], temperature: float) -> list[Floats]:
        """Return log-probabilities of the model before training, shape [T] per sample.

        The loaded weights must be those of the model before training, except for adapters.
        """
        policy = self._policy
        has_adapters = bool(policy.adapters) or policy.adapted is not None
        with policy.reference() if has_adapters else nullcontext(policy.forward) as forward:
            scorer = ForwardScorer(forward, policy.weights.values)
            return score_samples(scorer, samples, tokens=self._row_tokens, temperature=temperature)

    def losses(
        self, batch: TrainingBatch, *, version: int, reference: Sequence[Floats] | None
    ) -> dict[str, RecomputedLoss]:
        """Recompute `loss`, and `kl` if a KL term is configured, of one optimizer step over the batch.

        Args:
            version: policy version of the loaded weights.
            reference: reference log-probabilities, shape [T] per sample; read only if a KL term is configured.
        """
        config = self._experiment.ajet
        tokens = TokenLoss.from_settings(config.trainer_common, open_algorithm(config, base=self._experiment.base))
        rows = pack(batch.samples, self._row_tokens, share_prefixes=self.shares_prefixes)
        logprobs = [self.logprobs(row, batch.temperature) for row in rows]
        scale = compute_mini_batch_scale(config.trainer_common.algorithm.loss_aggregation, batch.samples, batch.samples)
        return recompute_losses(batch, tokens, rows, logprobs, scale=scale, version=version, reference=reference)

    @property
    def _row_tokens(self) -> int:
        return self._experiment.ajet.trainer_common.micro_batch_tokens

    def widen(self) -> bool:
        """Switch to float32 with the same weights. Return False if memory is too small; the scorer is then unusable."""
        try:
            self._policy.model.float()
        except torch.OutOfMemoryError:
            return False
        return True


SIDES = 2
"""Number of log-probabilities per token in a loss: the policy's, and the engine's or the reference model's.

The loss has the same slope in both.
"""


def recompute_losses(
    batch: TrainingBatch,
    tokens: TokenLoss,
    rows: Sequence[PackedRow],
    logprobs: Sequence[Floats],
    *,
    scale: float,
    version: int,
    reference: Sequence[Floats] | None,
) -> dict[str, RecomputedLoss]:
    """Recompute the losses of a finished update from the log-probabilities of its tokens under its weights.

    `losses.StepLoss` combines them as in the update, from the same batch and rows; no weights change. Only an update of
    one optimizer step can be recomputed, because the weights before later steps are gone.

    Args:
        logprobs: for each row, log-probabilities of the targets at the batch's temperature, shape [K].
    """
    samples = batch.samples
    if tokens.kl_coef is not None and reference is not None:
        samples = [replace(sample, reference=logprobs_T) for sample, logprobs_T in zip(samples, reference, strict=True)]
    old = placed(samples, rows, logprobs) if tokens.needs_old_logprobs else None
    loss = StepLoss(samples, tokens, scale, compare_engine=False, old=old, version=version, written=batch.written)
    slope = kl_slope = 0.0
    for row, row_logprobs in zip(rows, logprobs, strict=True):
        policy = torch.from_numpy(np.array(row_logprobs, np.float32)).requires_grad_()
        row_loss = loss.row(row.targets, policy.device, None)
        (gradient,) = torch.autograd.grad(row_loss(policy, torch.zeros_like(policy), slice(0, policy.numel())), policy)
        slope += float(gradient.abs().sum())
        if row_loss.reference is not None:
            (kl_gradient,) = torch.autograd.grad(estimate_kl(policy, row_loss.reference, tokens.kl_type).sum(), policy)
            kl_slope += float(kl_gradient.abs().sum())
    means = loss.tally.means()
    losses = {"loss": RecomputedLoss(means["loss"], SIDES * slope)}
    if tokens.kl_coef is not None:
        losses["kl"] = RecomputedLoss(means["kl"], SIDES * kl_slope / max(loss.tally.tokens, 1))
    return losses
