"""The policy's weights, and the reference model for a KL term.

Invariant: only one set of tensors exists. An engine over `LocalPolicy.model` wraps the tensors in separate module
objects (ajet.engine.transformers.attention), so attention and mode of policy and engine are independent. The reference
is a frozen copy, made only for a KL term; with LoRA, the reference is the policy's model with adapters switched off.
With several adapters, each row uses its own adapter.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ajet.backbone.local.flat_weights import FlatWeights
from ajet.backbone.local.lora import adapted_weights, add_adapters, parse_adapter_name
from ajet.backbone.local.packed_forward import PackedForward
from ajet.engine.adapters import Adapters, choose_adapter, load_adapter_weights
from ajet.engine.rms_norm import replace_norms
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config.schema.trainer_common import LoraConfig
    from ajet.engine.verdict_cache import VerdictCache


class LocalPolicy:
    """Takes ownership of `model`, a transformers causal language model in the compute dtype on its device.

    Args:
        start: model folder whose adapters are loaded.
    """

    def __init__(
        self,
        model: Any,
        *,
        lora: LoraConfig,
        reference: bool,
        gradient_checkpointing: bool = False,
        start: Path | None = None,
        verdicts: VerdictCache | None = None,
    ) -> None:
        """Add the configured adapters to the model and move all trained weights into one buffer.

        Args:
            lora: Settings of the adapters. Without adapters all weights are trained.
            reference: True to keep a copy of the untrained model if no adapters make it available.
            gradient_checkpointing: True to recompute activations in the backward pass.
            start: Model folder whose adapters are loaded.
            verdicts: Stores which models passed the packing check on this machine.
        """
        self.model = model.eval()
        replace_norms(model)
        self.adapted = add_adapters(model, lora) if lora.trains_adapters else None
        self.adapters = Adapters.from_config(lora)
        """The configured adapters; empty with a single adapter or none."""
        self._active_adapter: str | None = ""
        self._frozen_forward: PackedForward | None = None
        frozen = copy.deepcopy(model).requires_grad_(False) if reference and self.adapted is None else None
        for parameter in model.parameters():
            parameter.requires_grad_(self.adapted is None or parameter.requires_grad)
        if start is not None:
            for name in Adapters.from_folder(start).names:
                load_adapter_weights(self.adapted, start, name)
        trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if self.adapters:
            trained.sort(key=lambda pair: self.adapters.names.index(parse_adapter_name(pair[0])))
        self.weights = FlatWeights(trained)
        if gradient_checkpointing:
            _checkpoint_layers(model)
        self.forward = PackedForward(model, verdicts=verdicts)
        self.forward.choose = self.choose
        if frozen is not None:
            self._frozen_forward = PackedForward(frozen, verdicts=verdicts)

    def choose(self, adapter: str | None) -> None:
        """Make the given adapter the active one for all later passes.

        Raises:
            UserError: the policy has no adapter of the given name.
        """
        if adapter == self._active_adapter:
            return
        if adapter is not None and adapter not in self.adapters.names:
            raise UserError(
                f"This model has no adapter {adapter}.",
                where="ajet.trainer_common.lora.adapters",
                expected="the adapters that sampled these tokens: " + ", ".join(self.adapters.names),
            )
        if self.adapters:
            choose_adapter(self.model, adapter)
        self._active_adapter = adapter

    def locate_part(self, adapter: str | None) -> tuple[int, int]:
        """Return the range [start, stop) of an adapter's weights in the buffer of all weights.

        The complete range for None.
        """
        if adapter is None:
            return 0, self.weights.size
        slots = self.weights.places
        slot_indices = [index for index, slot in enumerate(slots) if parse_adapter_name(slot.name) == adapter]
        return slots[slot_indices[0]].start, slots[slot_indices[-1] + 1].start if slot_indices[-1] + 1 < len(
            slots
        ) else self.weights.size

    def changed(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield trained weights under the plain model's names, for an engine with a separate copy.

        Without LoRA, all parameters; with LoRA, the adapted matrices with adapters merged in, one at a time.
        """
        if self.adapted is not None:
            yield from adapted_weights(self.adapted)
        else:
            for name, parameter in self.model.named_parameters():
                yield name, parameter.detach()

    @contextmanager
    def reference(self) -> Iterator[PackedForward]:
        """Yield the model as it was before training.

        Raises:
            ValueError: the policy was created without a reference model.
        """
        if self.adapters:
            self.choose(None)
            yield PackedForward(self.model, packed=self.forward.packed)  # rows of the reference select no adapter
        elif self.adapted is not None:
            with self.adapted.disable_adapter():
                yield self.forward
        elif self._frozen_forward is not None:
            yield self._frozen_forward
        else:
            raise ValueError("this policy has no reference model, because no KL term needs one")


def _checkpoint_layers(model: Any) -> None:
    """Recompute each layer's activations in the backward pass.

    transformers checkpoints in training mode only. Dropout stays off, since the sampling policy has no dropout.
    """
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        # attention and expert modules pass a float attribute to the dropout function
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
