"""Adapters added to bfloat16 weights: right on average, however small beside the weights, and the same every time."""

from __future__ import annotations

import pytest
import torch

from ajet.backbone.local.lora import _NOISE, _SLICE, _add_rounded

pytestmark = pytest.mark.slow


def test_a_small_change_is_kept_on_average_and_every_time_alike() -> None:
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(3, _SLICE // 2 + 100, generator=draw).to(torch.bfloat16)  # ends within a second slice
    change = torch.randn(weight.shape, generator=draw) * 1e-4

    def kept(total: torch.Tensor, rows: slice) -> float:
        """How much of the change came into those rows."""
        came = (total.float() - weight.float())[rows]
        return float((came * change[rows]).sum() / (change[rows] ** 2).sum())

    total = _add_rounded(weight, change, seed=_NOISE - 1)  # the first slice's numbers begin with the last one
    assert total.dtype == torch.bfloat16 and total.is_contiguous()
    for row in range(3):
        assert kept(total, slice(row, row + 1)) == pytest.approx(1, abs=0.15)
    assert kept((weight.float() + change).to(torch.bfloat16), slice(None)) < 0.1, "which rounding to the nearest loses"
    assert torch.equal(total, _add_rounded(weight, change, seed=_NOISE - 1))
    assert not torch.equal(total, _add_rounded(weight, change, seed=7))


def test_other_formats_are_added_up_as_they_are() -> None:
    weight, change = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4)
    assert torch.equal(_add_rounded(weight, change, seed=1), weight + change.double())
