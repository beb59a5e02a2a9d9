"""In-place replacements of linear layers in the engine's module tree: packed matrices and mixed adapters.

On a CPU, torch repacks a bfloat16 matrix for each product. A decoding step has few rows, so repacking takes longer than
the product. `PackedWeights` packs once per policy version, and only while the engine samples. Invariant: results are
bit-identical; shapes with a different result for some number of rows use torch's own product. Packed matrices hold the
weights at the last call of `forget`, so call it after each change. Packing needs `SPARE` times its memory free, or no
matrix is packed.

`MixedAdapters` applies each token's own adapter within one step. Invariant: a token's hidden state is base(x) + B(A(x))
* scaling with A and B of its call, or base(x) without an adapter, as peft computes with a single adapter. peft's mixed
batches select one adapter per batch row, but a step has only one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from loguru import logger
from torch import Tensor

from ajet.engine.machine import measure_main_memory
from ajet.schema.errors import UserError

SPARE = 3
ROWS = 64
"""Number of rows for which the layout is optimized; any number works."""
PROBED = (1, 5, 64)
"""Numbers of rows at which a shape is compared with torch's product."""


class PackedWeights:
    """Replaces the products of `model`'s linear layers in place; no other code may share the module objects."""

    def __init__(self, model: Any) -> None:
        self.packed_weights: dict[torch.nn.Linear, Tensor] = {}
        self._lacks_memory = False
        layers = [module for module in model.modules() if _is_packable(module)]
        layer_by_kind = {_read_kind(linear): linear for linear in layers}
        same_bits_by_kind = {kind: has_same_bits(layer) for kind, layer in layer_by_kind.items()}
        self._layers = [linear for linear in layers if same_bits_by_kind[_read_kind(linear)]]
        for linear in self._layers:
            linear.forward = self._make_product(linear)

    @property
    def bytes(self) -> int:
        """Total size of the packed weights in bytes."""
        return sum(layer.weight.nbytes for layer in self._layers)

    def forget(self) -> None:
        """Free all packed weights. The next product packs again."""
        self.packed_weights.clear()
        self._lacks_memory = False

    def close(self) -> None:
        """Restore the layers' own products and drop all references.

        Each product references its layer, a cycle that would keep the model alive until garbage collection.
        """
        self.forget()
        for layer in self._layers:
            vars(layer).pop("forward", None)
        self._layers.clear()

    def _make_product(self, layer: torch.nn.Linear) -> Any:
        """Return the layer's forward function. The first call packs the weight, if memory suffices."""

        def product(inputs: Tensor) -> Tensor:
            """Return the layer's output by the packed weight, or by torch's own product if memory is short."""
            packed = self.packed_weights.get(layer)
            if packed is None:
                if not self._has_room():
                    return torch.nn.functional.linear(inputs, layer.weight, layer.bias)
                packed = self.packed_weights[layer] = _pack_weight(layer.weight)
            return _multiply_packed(inputs, packed, layer.bias)

        return product

    def _has_room(self) -> bool:
        """True if memory suffices for all packed weights. It is measured once per version."""
        if not self.packed_weights and not self._lacks_memory and measure_main_memory()[1] < SPARE * self.bytes:
            logger.info(
                "sampling is slower: too little memory to pack the weights ({:,.0f} MB needed)", self.bytes / 1e6
            )
            self._lacks_memory = True
        return not self._lacks_memory


def _is_packable(module: Any) -> bool:
    """True for plain linear layers that oneDNN computes in bfloat16."""
    if type(module) is not torch.nn.Linear:
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.is_contiguous() and can_pack()


def can_pack() -> bool:
    """True if this build of torch can pack and the processor multiplies bfloat16."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _pack_weight(weight: Tensor) -> Tensor:
    """Return a weight in oneDNN's layout for products with about ROWS rows."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
    return packed


def _multiply_packed(inputs: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of inputs [..., in] with a packed weight, plus the bias, without an activation."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
    return out


def _read_kind(layer: torch.nn.Linear) -> tuple[int, int, bool]:
    """Return the layer properties that determine the bits of its product."""
    return layer.out_features, layer.in_features, layer.bias is not None


def has_same_bits(layer: torch.nn.Linear) -> bool:
    """True if packed products of the layer equal torch's for every probed number of rows."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        packed = _pack_weight(layer.weight)
        for count in PROBED:
            inputs = torch.randn(count, layer.in_features, generator=generator).to(torch.bfloat16)
            expected = torch.nn.functional.linear(inputs, layer.weight, layer.bias)
            if not torch.equal(_multiply_packed(inputs, packed, layer.bias), expected):
                return False
    return True


Part = tuple[str, Tensor | None]
"""An adapter and the indices [n] of its tokens in a step; None for all tokens."""


class MixedAdapters:
    """Replaces the products of `model`'s LoRA layers in place; no other code may share the module objects.

    Raises:
        UserError: a layer has an adapter of another kind.
    """

    def __init__(self, model: Any, names: Collection[str]) -> None:
        from peft.tuners.lora import LoraLayer

        self.names = frozenset(names)
        self._rows_by_adapter: Sequence[Part] = ()
        self._layers: list[tuple[str, Any]] = [
            (name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
        ]
        for name, layer in self._layers:
            if not isinstance(layer.get_base_layer(), torch.nn.Linear) or layer.lora_variant:
                raise UserError(
                    f"The layer {name} has a kind of adapter that one batch cannot combine with other adapters.",
                    where="ajet.trainer_common.lora.target_modules",
                    expected="plain LoRA on linear layers",
                )
            layer.forward = self._make_product(name, layer)

    @contextmanager
    def computing(self, parts: Sequence[Part]) -> Iterator[None]:
        """Within the block, each part's tokens use the part's adapter, and other tokens use none."""
        self._rows_by_adapter = parts
        try:
            yield
        finally:
            self._rows_by_adapter = ()

    def close(self) -> None:
        """Restore the layers' own products and drop all references, so that the model can be freed."""
        for _, layer in self._layers:
            vars(layer).pop("forward", None)
        self._layers.clear()

    def _make_product(self, name: str, layer: Any) -> Any:
        """Return the layer's forward function for a batch whose rows use different adapters."""
        base = layer.get_base_layer()
        up = layer.lora_B
        down = layer.lora_A
        scaling = layer.scaling

        def product(inputs: Tensor) -> Tensor:
            """Return the base layer's output, plus that of each token's adapter. Raises UserError if tokens cannot be
            told apart.
            """
            result: Tensor = base(inputs)
            for adapter, rows in self._rows_by_adapter:
                if adapter not in down:
                    continue
                if rows is None:
                    result = result + up[adapter](down[adapter](inputs)) * scaling[adapter]
                    continue
                if inputs.dim() < 2 or int(rows[-1]) >= inputs.shape[-2]:
                    raise UserError(
                        f"The layer {name} does not see the tokens of a batch one by one, so several adapters "
                        "cannot share it.",
                        where="ajet.trainer_common.lora.target_modules",
                        expected="linear layers that see every token of the batch",
                    )
                change = up[adapter](down[adapter](inputs.index_select(-2, rows))) * scaling[adapter]
                result = result.index_add(inputs.dim() - 2, rows, change)
            return result

        return product


def split_by_adapter(owners: Sequence[tuple[str | None, int]], device: torch.device) -> list[Part]:
    """Return (adapter, indices of its tokens) for each adapter in a step. Tokens without an adapter are left out.

    Args:
        owners: (adapter, number of tokens) of consecutive tokens. None as adapter: the model alone.
    """
    if all(adapter is None for adapter, _ in owners):
        return []
    if len({adapter for adapter, _ in owners}) == 1:
        return [(str(owners[0][0]), None)]
    rows_by_adapter: dict[str, list[Tensor]] = {}
    offset = 0
    for adapter, count in owners:
        if adapter is not None:
            rows_by_adapter.setdefault(adapter, []).append(torch.arange(offset, offset + count))
        offset += count
    return [(adapter, torch.cat(rows_by_adapter[adapter]).to(device)) for adapter in sorted(rows_by_adapter)]
