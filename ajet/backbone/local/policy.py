"""The policy's weights, and the reference that a KL term compares with.

Invariant: there is one set of tensors. An engine over `Policy.model` makes module objects of its own around them
(ajet.engine.transformers.twin), so that neither's attention or mode reaches the other. The reference is a frozen
copy, made only when a KL term asks for it; with LoRA it is the policy's own model with the adapters off.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ajet.backbone.local.flat_weights import FlatWeights
from ajet.backbone.local.lora import adapted_weights, add_adapters
from ajet.backbone.local.packed_forward import PackedForward

if TYPE_CHECKING:
    from ajet.config.schema.trainer_common import Lora


class Policy:
    """Takes over `model`, a transformers causal language model in the compute dtype, on its device."""

    def __init__(self, model: Any, *, lora: Lora, reference: bool, gradient_checkpointing: bool = False) -> None:
        self.model = model.eval()
        self.adapted = add_adapters(model, lora) if lora.rank > 0 else None
        self._frozen: PackedForward | None = None
        frozen = copy.deepcopy(model).requires_grad_(False) if reference and self.adapted is None else None
        for parameter in model.parameters():
            parameter.requires_grad_(self.adapted is None or parameter.requires_grad)
        self.weights = FlatWeights([(name, p) for name, p in model.named_parameters() if p.requires_grad])
        if gradient_checkpointing:
            _checkpoint_layers(model)
        self.forward = PackedForward(model)
        if frozen is not None:
            self._frozen = PackedForward(frozen)

    def changed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What training changes, as the plain model names it, for an engine with weights of its own: all parameters,
        or, with LoRA, the matrices with their adapters added in, one at a time."""
        if self.adapted is not None:
            yield from adapted_weights(self.adapted)
        else:
            for name, parameter in self.model.named_parameters():
                yield name, parameter.detach()

    @contextmanager
    def reference(self) -> Iterator[PackedForward]:
        """The model that training began with. Raises ValueError when none was asked for."""
        if self.adapted is not None:
            with self.adapted.disable_adapter():
                yield self.forward
        elif self._frozen is not None:
            yield self._frozen
        else:
            raise ValueError("this policy keeps no reference model: no KL term asked for one")


def _checkpoint_layers(model: Any) -> None:
    """Recompute each layer's activations in the backward pass. transformers does so in training mode only; dropout
    stays off, since the policy that samples has none."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():  # attention and experts call the function with a number of their own
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
