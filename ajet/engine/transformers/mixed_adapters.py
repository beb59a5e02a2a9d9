"""Each token of a step through the adapter of its own call: the mixed form of peft's LoRA layers.

Invariant: a token's hidden state is base(x) + B(A(x)) * scaling with its call's A and B, and base(x) where its call has
none: the sum that peft computes with that adapter alone. peft's own mixed batches say an adapter a row of a batch; a
step here is one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ajet.schema.errors import UserError

Part = tuple[str, Tensor | None]
"""An adapter and the tokens [n] of a step that are its calls'; None: all."""


class MixedAdapters:
    """Replaces the products of `model`'s LoRA layers, in place: of module objects that nobody else uses. Raises
    UserError for adapters of other kinds."""

    def __init__(self, model: Any, names: Collection[str]) -> None:
        from peft.tuners.lora import LoraLayer

        self.names = frozenset(names)
        self._parts: Sequence[Part] = ()
        self._layers: list[tuple[str, Any]] = [
            (name, each) for name, each in model.named_modules() if isinstance(each, LoraLayer)
        ]
        for name, each in self._layers:
            if not isinstance(each.get_base_layer(), torch.nn.Linear) or each.lora_variant:
                raise UserError(
                    f"{name} has an adapter of a kind that cannot be mixed with others in one step.",
                    where="ajet.trainer_common.lora.target_modules",
                    expected="linear layers, plain LoRA",
                )
            each.forward = self._product(name, each)

    @contextmanager
    def computing(self, parts: Sequence[Part]) -> Iterator[None]:
        """Within the block tokens pass through these adapters; those that no part has, through none."""
        self._parts = parts
        try:
            yield
        finally:
            self._parts = ()

    def close(self) -> None:
        """The layers have their own products again; see `PackedWeights.close`."""
        for _, each in self._layers:
            vars(each).pop("forward", None)
        self._layers.clear()

    def _product(self, name: str, layer: Any) -> Any:
        base, up, down, scaling = layer.get_base_layer(), layer.lora_B, layer.lora_A, layer.scaling

        def product(given: Tensor) -> Tensor:
            result: Tensor = base(given)
            for adapter, at in self._parts:
                if adapter not in down:
                    continue
                if at is None:
                    result = result + up[adapter](down[adapter](given)) * scaling[adapter]
                    continue
                if given.dim() < 2 or int(at[-1]) >= given.shape[-2]:
                    raise UserError(
                        f"{name} does not compute the tokens of a step one by one: several adapters cannot share it.",
                        where="ajet.trainer_common.lora.target_modules",
                        expected="linear layers that see every token",
                    )
                change = up[adapter](down[adapter](given.index_select(-2, at))) * scaling[adapter]
                result = result.index_add(given.dim() - 2, at, change)
            return result

        return product


def parts_of(owners: Sequence[tuple[str | None, int]], device: torch.device) -> list[Part]:
    """The adapters of a step's tokens, of which `owners` says in order whose the next so many are."""
    if all(adapter is None for adapter, _ in owners):
        return []
    if len({adapter for adapter, _ in owners}) == 1:
        return [(str(owners[0][0]), None)]
    found: dict[str, list[Tensor]] = {}
    at = 0
    for adapter, count in owners:
        if adapter is not None:
            found.setdefault(adapter, []).append(torch.arange(at, at + count))
        at += count
    return [(adapter, torch.cat(found[adapter]).to(device)) for adapter in sorted(found)]
