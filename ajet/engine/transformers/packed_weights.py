"""The matrices of a bfloat16 model on a CPU, laid out once as its matrix unit reads them.

torch's linear lays a matrix out anew for each product: in a decoding step, where a product has few rows, that takes
longer than the product. Here it is done once a policy version, and only while the engine samples.

Invariant: the numbers are the same, bit for bit: a shape for which this library's packed product says otherwise for
some number of rows keeps torch's own. A packed matrix is of the weights as they were when `forget` was last called;
whoever changes them calls it. Where there is not `SPARE` times the memory free that packing takes, nothing is packed.
"""

from __future__ import annotations

from typing import Any

import torch
from loguru import logger
from torch import Tensor

from ajet.engine.machine import main_memory

SPARE = 3
ROWS = 64
"""For how many rows a product the layout is chosen; it serves any number."""
PROBED = (1, 5, 64)
"""Rows of the products that a shape is held against torch's own with."""


class PackedWeights:
    """Replaces the products of `model`'s linear layers, in place: of module objects that nobody else uses."""

    def __init__(self, model: Any) -> None:
        self._packed: dict[torch.nn.Linear, Tensor] = {}
        self._refused = False
        layers = [each for each in model.modules() if _suits(each)]
        one_each = {_kind(each): each for each in layers}
        same = {kind: _same_bits(layer) for kind, layer in one_each.items()}
        self._layers = [each for each in layers if same[_kind(each)]]
        for each in self._layers:
            each.forward = self._product(each)

    @property
    def bytes(self) -> int:
        """The bytes that all packed weights take."""
        return sum(each.weight.nbytes for each in self._layers)

    def forget(self) -> None:
        """Free what was packed; the next product packs anew."""
        self._packed.clear()
        self._refused = False

    def close(self) -> None:
        """The layers have their own products again, and nothing of this holds them or their weights: each product knows
        its layer, and such a circle would keep the model until Python looks for circles."""
        self.forget()
        for each in self._layers:
            vars(each).pop("forward", None)
        self._layers.clear()

    def _product(self, layer: torch.nn.Linear) -> Any:
        def product(given: Tensor) -> Tensor:
            packed = self._packed.get(layer)
            if packed is None:
                if not self._room():
                    return torch.nn.functional.linear(given, layer.weight, layer.bias)
                packed = self._packed[layer] = _pack(layer.weight)
            return _multiply(given, packed, layer.bias)

        return product

    def _room(self) -> bool:
        """Whether there is memory for all packed weights, asked once a version."""
        if not self._packed and not self._refused and main_memory()[1] < SPARE * self.bytes:
            logger.info("There is no memory to lay the weights out for sampling ({:,.0f} MB)", self.bytes / 1e6)
            self._refused = True
        return not self._refused


def _suits(module: Any) -> bool:
    """A plain linear layer whose product oneDNN computes in bfloat16."""
    if type(module) is not torch.nn.Linear:
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.is_contiguous() and available()


def available() -> bool:
    """Whether this build of torch packs, and this processor multiplies bfloat16."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
    return packed


def _multiply(given: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(given, packed, bias, "none", [], "")
    return out


def _kind(layer: torch.nn.Linear) -> tuple[int, int, bool]:
    """The properties of a layer that decide about its product's bits."""
    return layer.out_features, layer.in_features, layer.bias is not None


def _same_bits(layer: torch.nn.Linear) -> bool:
    """Whether packed products of this kind are torch's own, for every number of rows that is tried."""
    draw = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        packed = _pack(layer.weight)
        for count in PROBED:
            given = torch.randn(count, layer.in_features, generator=draw).to(torch.bfloat16)
            own = torch.nn.functional.linear(given, layer.weight, layer.bias)
            if not torch.equal(_multiply(given, packed, layer.bias), own):
                return False
    return True
