"""The engine's matrices as a CPU's bfloat16 products read them: same bits, no older weights, no memory in a pause."""

from __future__ import annotations

import pytest
import torch

from ajet.engine.transformers import linear_layers
from ajet.engine.transformers.linear_layers import PackedWeights, can_pack

needs_packing = pytest.mark.skipif(not can_pack(), reason="this processor or torch lays out no bfloat16 matrices")


def layers(dtype: torch.dtype = torch.bfloat16) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(96, 200), torch.nn.Linear(200, 48, bias=False)).to(dtype)


@needs_packing
@pytest.mark.parametrize("rows", [1, 7, 64, 257])
def test_the_products_are_the_same_bits(rows: int) -> None:
    plain, packed = layers(), layers()
    weights = PackedWeights(packed)
    given = torch.randn(rows, 96).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(packed(given), plain(given))
        assert torch.equal(packed(given[None]), plain(given[None]))
    assert len(weights.packed_weights) == 2 and weights.bytes == 2 * (96 * 200 + 200 * 48)


@needs_packing
def test_what_was_packed_goes_with_a_change() -> None:
    model = layers()
    weights = PackedWeights(model)
    given = torch.randn(3, 96).to(torch.bfloat16)
    with torch.inference_mode():
        before = model(given)
        weight = model[1].weight
        assert isinstance(weight, torch.Tensor)
        weight.mul_(2)
        weights.forget()
        assert not weights.packed_weights
        assert torch.equal(model(given), 2 * before)


@needs_packing
def test_without_memory_nothing_is_packed_until_the_next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = layers(), torch.randn(3, 96).to(torch.bfloat16)
    weights = PackedWeights(model)
    monkeypatch.setattr(linear_layers, "measure_main_memory", lambda: (1 << 40, weights.bytes))
    with torch.inference_mode():
        assert torch.equal(model(given), layers()(given)) and not weights.packed_weights
        monkeypatch.setattr(linear_layers, "measure_main_memory", lambda: (1 << 40, 1 << 40))
        model(given)
        assert not weights.packed_weights, "asked once a version"
        weights.forget()
        model(given)
        assert len(weights.packed_weights) == 2


@needs_packing
def test_a_shape_with_other_bits_keeps_torchs_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    monkeypatch.setattr(linear_layers, "has_same_bits", lambda layer: layer.out_features == 200)
    weights = PackedWeights(model)
    assert weights.bytes == 2 * 96 * 200 and "forward" not in vars(model[1])


def test_other_types_are_left_alone() -> None:
    model = layers(torch.float32)
    assert PackedWeights(model).bytes == 0 and "forward" not in vars(model[0])
