"""The loss of an update that is over, from the log-probabilities that its weights give its tokens.

Invariant: it is joined by the class that joined it (`losses.StepLoss`), from the same batch and rows; nothing is
trained. Only an update of one optimizer step can be had so: of a later one the weights that it began with are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from ajet.algorithm.kl import estimate
from ajet.algorithm.token_loss import TokenLoss
from ajet.backbone.contract import LossAgain
from ajet.backbone.local.losses import StepLoss
from ajet.context_tracker.packing import PackedRow, placed
from ajet.schema.batch import TrainingBatch
from ajet.schema.call import Floats

SIDES = 2
"""A loss rests on a token's log-probability under the policy and on one that it is held to: the engine's or the
reference model's. It has the same slope in both."""


def losses_again(
    batch: TrainingBatch,
    tokens: TokenLoss,
    rows: Sequence[PackedRow],
    logprobs: Sequence[Floats],
    *,
    scale: float,
    version: int,
    reference: Sequence[Floats] | None,
) -> dict[str, LossAgain]:
    """`logprobs`: [K] of each row's targets at the batch's temperature; the rest as in `RecordedScorer.losses`."""
    samples = batch.samples
    if tokens.kl_coef is not None and reference is not None:
        samples = [replace(each, reference=its) for each, its in zip(samples, reference, strict=True)]
    old = placed(samples, rows, logprobs) if tokens.looks_back else None
    loss = StepLoss(samples, tokens, scale, compare_engine=False, old=old, version=version, written=batch.written)
    slope = apart = 0.0
    for row, own in zip(rows, logprobs, strict=True):
        policy = torch.from_numpy(np.array(own, np.float32)).requires_grad_()
        its = loss.row(row.targets, policy.device, None)
        (gradient,) = torch.autograd.grad(its(policy, torch.zeros_like(policy), slice(0, policy.numel())), policy)
        slope += float(gradient.abs().sum())
        if its.reference is not None:
            (drawn,) = torch.autograd.grad(estimate(policy, its.reference, tokens.kl_type).sum(), policy)
            apart += float(drawn.abs().sum())
    means = loss.tally.means()
    found = {"loss": LossAgain(means["loss"], SIDES * slope)}
    if tokens.kl_coef is not None:
        found["kl"] = LossAgain(means["kl"], SIDES * apart / max(loss.tally.tokens, 1))
    return found
