"""The critic: one linear head on the policy's last hidden states that predicts the return at each token.

Invariant: the critic sees the policy's context before a token is sampled, and needs no separate model. Its cost is one
row of the hidden size with moments, one forward pass over a batch before the update, and the hidden states of a step's
trained tokens while its own optimizer takes several steps (`critic.epochs`). The head starts at 0 and draws no random
number, so equal batches give equal bits. Only `critic.vf_coef` lets the value loss reach the policy's weights; at 0 the
policy moves as without a critic.

A value is the mean over hidden elements of element times weight, plus a bias; the hidden state is first scaled to a
root mean square of 1. AdamW moves each weight by about the learning rate, so a value moves by about as much for every
model size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ajet.algorithm.loss_terms import value_loss
from ajet.backbone.local.flat_weights import FlatWeights
from ajet.backbone.local.losses import summed_fields
from ajet.backbone.local.optimizer import FlatAdamW

if TYPE_CHECKING:
    from ajet.backbone.local.packed_forward import PackedForward
    from ajet.config.schema.trainer_common import TrainerConfig
    from ajet.context_tracker.packing import PackedRow, Targets
    from ajet.schema.batch import Sample


class ValueHead:
    """The value head for hidden states of width `size`, always in float32."""

    def __init__(self, size: int, device: torch.device, trainer: TrainerConfig) -> None:
        """Start at value 0 for every hidden state. `trainer` has the settings of the critic and of the optimizer."""
        self.settings = trainer.algorithm.critic
        optim = trainer.optim
        self.weight = torch.nn.Parameter(torch.zeros(size, dtype=torch.float32, device=device))
        self.bias = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device))
        self.weights = FlatWeights([("weight", self.weight), ("bias", self.bias)])
        self.optimizer = FlatAdamW(
            self.weights,
            betas=(optim.betas[0], optim.betas[1]),
            eps=optim.eps,
            weight_decay=0.0,
            clip=optim.grad_clip,
        )

    def __call__(self, hidden_KH: Tensor) -> Tensor:
        """Return the values at the given hidden states, shape [K]."""
        states = hidden_KH.float()
        size = states.pow(2).mean(-1, keepdim=True).clamp(min=1e-12).rsqrt()
        return (states * size) @ self.weight / self.weight.numel() + self.bias

    def compute_values(self, forward: PackedForward, row: PackedRow) -> Any:
        """Return the values of a packed row's targets: float32 [K] on the CPU, without gradient."""
        with torch.no_grad():
            return self(forward.hidden(row)).cpu().numpy()

    def step(self) -> float:
        """Take one optimizer step on the gradients and return their norm.

        If the norm is not finite, no weight changes.
        """
        gradients = self.weights.gradients
        assert gradients is not None
        norm = self.optimizer.step(gradients, self.settings.lr)
        self.weights.drop_gradients()
        return norm

    def held(self) -> tuple[list[Tensor], dict[str, int]]:
        """Return a copy of everything that an optimizer step of the head changes, for `restore`."""
        return [tensor.clone() for tensor in self._list_changing_tensors()], dict(self.optimizer.counts)

    def restore(self, held: tuple[list[Tensor], dict[str, int]]) -> None:
        """Restore the weights and step counts that `held` returned."""
        for tensor, copied in zip(self._list_changing_tensors(), held[0], strict=True):
            tensor.copy_(copied)
        self.optimizer.counts = dict(held[1])

    def _list_changing_tensors(self) -> list[Tensor]:
        """Return the tensors changed by an optimizer step of the head."""
        return list(self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a checkpoint by name. The caller stores the optimizer's step count separately."""
        own_tensors = {"values": self.weights.values, "first": self.optimizer.first, "second": self.optimizer.second}
        return {f"critic_{name}": tensor for name, tensor in own_tensors.items()}


@dataclass(slots=True)
class ValueTally:
    """Sums over trained tokens of one optimizer step or of a complete training step."""

    steps: int = 1
    tokens: int = 0
    loss: float = 0.0
    """Sum over optimizer steps; each step's weights make its part a mean over the step."""
    clipped: int = 0

    @classmethod
    def merge(cls, tallies: Sequence[ValueTally]) -> ValueTally:
        """Return the combined tally of all given tallies."""
        return cls(**summed_fields(cls, tallies))

    def means(self) -> dict[str, float]:
        """Return the metrics as means over tokens. `critic/loss` is the mean over optimizer steps."""
        return {
            "critic/loss": self.loss / max(self.steps, 1),
            "critic/clip_fraction": self.clipped / max(self.tokens, 1),
        }


@dataclass(slots=True)
class StepValueLoss:
    """The value losses of one optimizer step over `samples`, with old values and returns."""

    head: ValueHead
    samples: Sequence[Sample]
    scale: float
    tally: ValueTally = field(default_factory=ValueTally)
    _later_rows: list[tuple[Tensor, RowValueLoss, slice]] = field(default_factory=list)
    _starts: Any = field(init=False)
    _columns: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Concatenate weights, old values and returns over all samples, so that a row's targets can index them. Raises
        ValueError without values.
        """
        lengths = [sample.timeline.ids.size for sample in self.samples]
        self._starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        weights = np.repeat([sample.weight * self.scale for sample in self.samples], lengths).astype(np.float32)
        pairs = [(sample.values, sample.returns) for sample in self.samples]
        if any(values is None or returns is None for values, returns in pairs):
            raise ValueError("a critic needs samples with values and returns")
        self._columns = (weights, *(np.concatenate([pair[index] for pair in pairs]) for index in (0, 1)))

    def keep(self, states_CH: Tensor, row: RowValueLoss, target_range: slice) -> None:
        """Store the hidden states of a row's targets, for further optimizer steps of the head.

        Args:
            states_CH: Hidden states [C, H].
            target_range: The range of targets within the row.
        """
        self._later_rows.append((states_CH, row, target_range))

    def learn(self) -> float:
        """Take all optimizer steps of the head, and return the norm of the first one.

        The first step uses the gradients summed over the rows. Later steps use the stored hidden states of the rows.
        The result is nan if any norm is not finite.
        """
        norm = self.head.step()
        for _ in range(self.head.settings.epochs - 1):
            self.head.weights.open_gradients(passes=1)
            for states, row, targets in self._later_rows:
                row.loss(states, targets)[0].backward()
            if not math.isfinite(self.head.step()):
                return math.nan
        self._later_rows.clear()
        return norm

    def row(self, targets: Targets, device: torch.device) -> RowValueLoss:
        """Return the loss of one row's targets."""
        positions = self._starts[targets.sample] + targets.offset
        return RowValueLoss(self, *(torch.from_numpy(column[positions]).to(device) for column in self._columns))


@dataclass(slots=True)
class RowValueLoss:
    """The value loss of one row with K target tokens. `weights`, `old` and `returns` have shape [K].

    A call computes it for some of the targets, so that not all hidden states are in memory at once.
    """

    step: StepValueLoss
    weights: Tensor
    old: Tensor
    returns: Tensor

    def __call__(self, hidden_CH: Tensor, target_range: slice) -> Tensor | None:
        """Add to the head's gradients, and return the gradient for the hidden states of the targets `target_range`.

        Returns:
            [C, H], or None if the value loss does not reach the policy.
        """
        step, coefficient = self.step, self.step.head.settings.vf_coef
        states = hidden_CH.detach().requires_grad_(coefficient > 0)
        total, clipped = self.loss(states, target_range)
        total.backward()
        step.tally.tokens += clipped.numel()
        step.tally.loss += float(total.detach())
        step.tally.clipped += int(clipped.sum())
        if step.head.settings.epochs > 1:
            step.keep(states.detach(), self, target_range)
        return coefficient * states.grad if states.grad is not None else None

    def loss(self, states_CH: Tensor, target_range: slice) -> tuple[Tensor, Tensor]:
        """Return the summed loss of the targets `target_range`, and a mask of clipped values."""
        head = self.step.head
        clip = head.settings.cliprange_value
        loss, clipped = value_loss(head(states_CH), self.old[target_range], self.returns[target_range], clip)
        return (self.weights[target_range] * loss).sum(), clipped
