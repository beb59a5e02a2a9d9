"""The norm in pieces: the numbers of the module that it replaces, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ajet.engine import rms_norm
from ajet.engine.rms_norm import cheapen_norms

WIDTH = 24


def norm(kind: type = LlamaRMSNorm) -> torch.nn.Module:
    made = kind(WIDTH, 1e-5).to(torch.bfloat16)
    made.weight.data.add_(torch.randn(WIDTH, generator=torch.Generator().manual_seed(3)))
    return made


def passed(module: torch.nn.Module, given: torch.Tensor) -> list[torch.Tensor]:
    x = given.clone().requires_grad_()
    out = module(x)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out.dtype)
    wanted = [x] + [p for p in module.parameters() if p.requires_grad]
    return [out, *torch.autograd.grad(out, wanted, grad)]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (1, 3, 5)])
def test_same_bits(monkeypatch, shape, frozen):
    """In pieces of three rows, the last of which is shorter or alone; and of a copy made afterwards, as the reference
    model is."""
    monkeypatch.setattr(rms_norm, "PIECE", 3 * WIDTH)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    own, ours = norm(), norm()
    own.requires_grad_(not frozen)
    ours.requires_grad_(not frozen)
    assert cheapen_norms(ours) == 1 and isinstance(ours, LlamaRMSNorm)
    assert cheapen_norms(ours) == 0, "twice is once"
    given = torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(4)).mul_(3).to(torch.bfloat16)
    for module in (ours, copy.deepcopy(ours)):
        assert all(map(torch.equal, passed(module, given), passed(own, given)))
    with torch.inference_mode():
        assert torch.equal(ours(given), own(given))


def test_another_norm_keeps_its_own():
    """Gemma's multiplies by 1 + weight, and bears the same name."""

    class OffsetRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states):
            return super().forward(hidden_states) + hidden_states * 0.5

    module = norm(OffsetRMSNorm)
    assert cheapen_norms(module) == 0 and type(module) is OffsetRMSNorm


def test_float32_keeps_its_own():
    assert cheapen_norms(norm().float()) == 0
