"""The policy's weights, and the reference that a KL term compares with.

Invariant: there is one set of tensors. An engine over `Policy.model` makes module objects of its own around them
(ajet.engine.transformers.attention), so that neither's attention or mode reaches the other. The reference is a frozen
copy, made only when a KL term asks for it; with LoRA it is the policy's own model with the adapters off. Of several
adapters each row is computed with its own.
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
    """Takes over `model`, a transformers causal language model in the compute dtype, on its device. `start`: a model
    folder whose adapters it begins with."""

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
        self.model = model.eval()
        replace_norms(model)
        self.adapted = add_adapters(model, lora) if lora.trains_adapters else None
        self.adapters = Adapters.from_config(lora)
        """Of several; empty where there is one or none."""
        self._chosen: str | None = ""
        self._frozen: PackedForward | None = None
        frozen = copy.deepcopy(model).requires_grad_(False) if reference and self.adapted is None else None
        for parameter in model.parameters():
            parameter.requires_grad_(self.adapted is None or parameter.requires_grad)
        if start is not None:
            for name in Adapters.from_folder(start).names:
                load_adapter_weights(self.adapted, start, name)
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if self.adapters:
            trained.sort(key=lambda pair: self.adapters.names.index(parse_adapter_name(pair[0])))
        self.weights = FlatWeights(trained)
        if gradient_checkpointing:
            _checkpoint_layers(model)
        self.forward = PackedForward(model, verdicts=verdicts)
        self.forward.choose = self.choose
        if frozen is not None:
            self._frozen = PackedForward(frozen, verdicts=verdicts)

    def choose(self, adapter: str | None) -> None:
        """Compute with this one of several adapters from here on. Raises UserError for one that there is not."""
        if adapter == self._chosen:
            return
        if adapter is not None and adapter not in self.adapters.names:
            raise UserError(
                f"There is no adapter {adapter} here.",
                where="ajet.trainer_common.lora.adapters",
                expected="the adapters that these tokens were sampled by: " + ", ".join(self.adapters.names),
            )
        if self.adapters:
            choose_adapter(self.model, adapter)
        self._chosen = adapter

    def locate_part(self, adapter: str | None) -> tuple[int, int]:
        """The part of the buffer with the adapter's weights, [start, stop); None: all."""
        if adapter is None:
            return 0, self.weights.size
        places = self.weights.places
        own = [at for at, place in enumerate(places) if parse_adapter_name(place.name) == adapter]
        return places[own[0]].start, places[own[-1] + 1].start if own[-1] + 1 < len(places) else self.weights.size

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
        if self.adapters:
            self.choose(None)
            yield PackedForward(self.model, packed=self.forward.packed)  # for which rows name no adapter
        elif self.adapted is not None:
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
