"""The critic: one linear head on the policy's last hidden states, which says what an attempt is worth at a token.

Invariant: it sees what the policy sees, before the token is drawn, and costs no model of its own: a row of the hidden
size, its moments, one forward pass over a batch before the update, and the hidden states of an optimizer step's trained
tokens while its own optimizer takes several (`critic.epochs`). It begins at 0 and draws no random number, so
that the same batches give the same bits. The policy's weights learn from it by `critic.vf_coef` only; at 0 they move as
they would without it.

A value is the mean over the hidden state's elements, which are brought to a root mean square of 1, of element times
weight, plus a bias: so that AdamW, whose steps are about the learning rate a weight, moves a value by about as much,
whatever the model's size.
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
    """The value head of a policy whose hidden states are `size` wide. float32, whatever the policy is."""

    def __init__(self, size: int, device: torch.device, trainer: TrainerConfig) -> None:
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
        """[K] the values of the places that these hidden states are of."""
        states = hidden_KH.float()
        size = states.pow(2).mean(-1, keepdim=True).clamp(min=1e-12).rsqrt()
        return (states * size) @ self.weight / self.weight.numel() + self.bias

    def compute_values(self, forward: PackedForward, row: PackedRow) -> Any:
        """[K] float32, on the CPU, without gradient: of a packed row's targets."""
        with torch.no_grad():
            return self(forward.hidden(row)).cpu().numpy()

    def step(self) -> float:
        """Take one optimizer step on its gradients; answers their norm. Where that is not finite nothing changes."""
        gradients = self.weights.gradients
        assert gradients is not None
        norm = self.optimizer.step(gradients, self.settings.lr)
        self.weights.drop_gradients()
        return norm

    def held(self) -> tuple[list[Tensor], dict[str, int]]:
        """A copy of all that a step changes."""
        return [tensor.clone() for tensor in self._list_changing_tensors()], dict(self.optimizer.counts)

    def restore(self, held: tuple[list[Tensor], dict[str, int]]) -> None:
        """Back to that."""
        for tensor, copied in zip(self._list_changing_tensors(), held[0], strict=True):
            tensor.copy_(copied)
        self.optimizer.counts = dict(held[1])

    def _list_changing_tensors(self) -> list[Tensor]:
        return list(self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps of it, by name; its optimizer's steps come on top."""
        own = {"values": self.weights.values, "first": self.optimizer.first, "second": self.optimizer.second}
        return {f"critic_{name}": tensor for name, tensor in own.items()}


@dataclass(slots=True)
class ValueTally:
    """Sums over trained tokens, of one optimizer step or of all of a training step."""

    steps: int = 1
    tokens: int = 0
    loss: float = 0.0
    """Each step's is a sum whose weights make it a mean over that step."""
    clipped: int = 0

    @classmethod
    def merge(cls, tallies: Sequence[ValueTally]) -> ValueTally:
        """Return the tally of all their tokens."""
        return cls(**summed_fields(cls, tallies))

    def means(self) -> dict[str, float]:
        """Return the metrics, means over tokens; `critic/loss` is the mean over optimizer steps."""
        return {
            "critic/loss": self.loss / max(self.steps, 1),
            "critic/clip_fraction": self.clipped / max(self.tokens, 1),
        }


@dataclass(slots=True)
class StepValueLoss:
    """The value losses of one optimizer step over `samples`, which say what was expected and what came."""

    head: ValueHead
    samples: Sequence[Sample]
    scale: float
    tally: ValueTally = field(default_factory=ValueTally)
    _later_rows: list[tuple[Tensor, RowValueLoss, slice]] = field(default_factory=list)
    _starts: Any = field(init=False)
    _columns: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        lengths = [sample.timeline.ids.size for sample in self.samples]
        self._starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        weights = np.repeat([sample.weight * self.scale for sample in self.samples], lengths).astype(np.float32)
        pairs = [(sample.values, sample.returns) for sample in self.samples]
        if any(values is None or returns is None for values, returns in pairs):
            raise ValueError("a critic learns from samples with values and returns")
        self._columns = (weights, *(np.concatenate([pair[at] for pair in pairs]) for at in (0, 1)))

    def keep(self, states_CH: Tensor, row: RowValueLoss, at: slice) -> None:
        """For further optimizer steps of the head."""
        self._later_rows.append((states_CH, row, at))

    def learn(self) -> float:
        """The head's optimizer steps, the first of them on the gradients that the rows have added up, the others on
        the hidden states as they were in these rows. Answers the first one's norm, nan where one is not finite."""
        norm = self.head.step()
        for _ in range(self.head.settings.epochs - 1):
            self.head.weights.open_gradients(passes=1)
            for states, row, at in self._later_rows:
                row.loss(states, at)[0].backward()
            if not math.isfinite(self.head.step()):
                return math.nan
        self._later_rows.clear()
        return norm

    def row(self, targets: Targets, device: torch.device) -> RowValueLoss:
        """The loss of one row's targets."""
        at = self._starts[targets.sample] + targets.offset
        return RowValueLoss(self, *(torch.from_numpy(column[at]).to(device) for column in self._columns))


@dataclass(slots=True)
class RowValueLoss:
    """Called by the packed forward pass with the hidden states of some of the row's targets. Shapes: [K]."""

    step: StepValueLoss
    weights: Tensor
    old: Tensor
    returns: Tensor

    def __call__(self, hidden_CH: Tensor, at: slice) -> Tensor | None:
        """Adds to the head's gradients; answers what is to be added to those of the hidden states of the targets `at`:
        [C, H], None where that is nothing."""
        step, coefficient = self.step, self.step.head.settings.vf_coef
        states = hidden_CH.detach().requires_grad_(coefficient > 0)
        total, clipped = self.loss(states, at)
        total.backward()
        step.tally.tokens += clipped.numel()
        step.tally.loss += float(total.detach())
        step.tally.clipped += int(clipped.sum())
        if step.head.settings.epochs > 1:
            step.keep(states.detach(), self, at)
        return coefficient * states.grad if states.grad is not None else None

    def loss(self, states_CH: Tensor, at: slice) -> tuple[Tensor, Tensor]:
        """The summed loss of the targets `at`, and which of them the bound holds."""
        head = self.step.head
        clip = head.settings.cliprange_value
        loss, clipped = value_loss(head(states_CH), self.old[at], self.returns[at], clip)
        return (self.weights[at] * loss).sum(), clipped
