"""The norm in pieces: the numbers of the module that it replaces, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ajet.engine import rms_norm
from ajet.engine.rms_norm import replace_norms

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
    assert replace_norms(ours) == 1 and isinstance(ours, LlamaRMSNorm)
    assert replace_norms(ours) == 0, "twice is once"
    given = torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(4)).mul_(3).to(torch.bfloat16)
    copied = copy.deepcopy(ours)
    for module in (ours, copied):
        assert all(map(torch.equal, passed(module, given), passed(own, given)))
    own.weight.data.mul_(2)
    copied.weight.data.mul_(2)
    assert torch.equal(passed(copied, given)[0], passed(own, given)[0]), "a copy has weights of its own"
    own.weight.data.mul_(0.5)
    with torch.inference_mode():
        assert torch.equal(ours(given), own(given))


def test_another_norm_keeps_its_own():
    """Gemma's multiplies by 1 + weight, and bears the same name."""

    class OffsetRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states):
            return super().forward(hidden_states) + hidden_states * 0.5

    module = norm(OffsetRMSNorm)
    assert replace_norms(module) == 0 and type(module) is OffsetRMSNorm


def test_a_norm_that_cannot_be_tried_keeps_its_own():
    class GatedRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states, gate=None):
            return super().forward(hidden_states if gate is None else hidden_states * gate)

    class GroupedRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states):
            rows, groups, _, width = hidden_states.shape
            return super().forward(hidden_states)

    for kind in (GatedRMSNorm, GroupedRMSNorm):
        module = norm(kind)
        assert replace_norms(module) == 0 and type(module) is kind


def test_a_norm_that_weighs_in_float32_keeps_its_own():
    class LateRMSNorm(torch.nn.Module):
        """Its weights in float32, where they are all 1 the same."""

        def __init__(self, width, epsilon):
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(width)), epsilon

        def forward(self, hidden_states):
            wide = hidden_states.float()
            normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
            return (normed * self.weight.float()).to(hidden_states.dtype)

    assert replace_norms(LateRMSNorm(WIDTH, 1e-5).to(torch.bfloat16)) == 0


def test_its_result_may_be_changed_in_place():
    """As Mixtral does while its layers are recomputed."""
    own, ours = norm(), norm()
    replace_norms(ours)
    found = []
    for module in (own, ours):
        x = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(4)).bfloat16().requires_grad_()
        out = module(x * 1)
        out *= 0.7
        found.append([out, *torch.autograd.grad(out, [x, module.weight], torch.ones_like(out))])
    assert all(map(torch.equal, *found))


def test_without_a_backward_pass_nothing_is_kept_for_it(monkeypatch):
    ours, given = norm(), torch.randn(1, 5, WIDTH).bfloat16()
    replace_norms(ours)
    monkeypatch.setattr(rms_norm, "_RmsNorm", None)
    with torch.no_grad():
        assert torch.equal(ours(given), norm()(given))


def test_float32_keeps_its_own():
    assert replace_norms(norm().float()) == 0
