"""Flat weights, AdamW over them, and schedules."""

from __future__ import annotations

import pytest
import torch

from ajet.algorithm.learning_rate import LearningRateSchedule
from ajet.backbone.local.flat_weights import FlatWeights
from ajet.backbone.local.optimizer import FlatAdamW, gradient_norm
from ajet.schema.errors import ConfigError
from tests.support.local_fixtures import config_of


def parameters(dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    shapes = {"norm": (7,), "matrix": (13, 11), "bias": (3,), "wide": (600, 700)}
    return [(name, torch.nn.Parameter(torch.randn(shape, generator=draw).to(dtype))) for name, shape in shapes.items()]


def gradient_of(weights, step):
    flat = torch.zeros(weights.size)
    draw = torch.Generator().manual_seed(step)
    for place in weights.places:
        flat[place.start : place.stop] = torch.randn(place.stop - place.start, generator=draw)
    return flat


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_numbers_as_torch(dtype, decay):
    """In bfloat16 the masters follow the float32 optimizer too: nothing is lost between steps."""
    named = parameters(dtype)
    twins = {name: torch.nn.Parameter(p.detach().float().clone()) for name, p in named}
    weights = FlatWeights(named)
    mine = FlatAdamW(weights, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay, clip=1.0)
    theirs = torch.optim.AdamW(
        [{"params": [p for p in twins.values() if p.ndim >= 2], "weight_decay": decay},
         {"params": [p for p in twins.values() if p.ndim < 2], "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    for step in range(5):
        flat = gradient_of(weights, step)
        for place in weights.places:
            twins[place.name].grad = flat[place.start : place.stop].view(place.shape).clone()
        norm = torch.nn.utils.clip_grad_norm_(twins.values(), 1.0)
        theirs.step()
        assert mine.step(flat, 1e-3) == pytest.approx(norm.item(), rel=1e-5)
    for place in weights.places:
        master = weights.master(place.start, place.stop).view(place.shape)
        torch.testing.assert_close(master, twins[place.name].detach(), rtol=1e-5, atol=1e-6)


def test_masters_are_exact_and_values_are_rounded_to_the_nearest():
    weights = FlatWeights([("w", torch.nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16)))])
    draw = torch.Generator().manual_seed(1)
    master = torch.randn(4096, generator=draw) * 10.0 ** torch.randint(-20, 20, (4096,), generator=draw)
    weights.set_master(0, 4096, master.clone())
    assert torch.equal(weights.master(0, 4096), master)
    off = (weights.values.float() - master).abs()
    assert torch.equal(off, (master.bfloat16().float() - master).abs()), "as close as torch's own rounding"


def written_out(weights, state, flat, steps, lr):
    """A step of all weights at once, after torch.optim.AdamW, masters put together and taken apart by shifts."""
    wide = flat.float() * min(1.0, 1.0 / (gradient_norm(flat) + 1e-6))
    state["first"].lerp_(wide, 1 - 0.9)
    state["second"].mul_(0.95).addcmul_(wide, wide, value=1 - 0.95)
    spread = state["second"].sqrt().div_((1 - 0.95**steps) ** 0.5).add_(1e-8)
    bits = (weights.values.view(torch.int16).to(torch.int32) << 16) + weights.low
    master = bits.view(torch.float32)
    master[: weights.decayed] *= 1 - lr * 0.1
    master.addcdiv_(state["first"], spread, value=-lr / (1 - 0.9**steps))
    high = (bits + 0x8000) >> 16
    weights.values.copy_(high.to(torch.int16).view(torch.bfloat16))
    weights.low.copy_(bits - (high << 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_in_slices_and_room_gives_the_bits_of_one_written_out(dtype):
    """Of gradients of both types, over several slices of which the last is shorter."""
    ours, plain = (FlatWeights(parameters(torch.bfloat16)) for _ in range(2))
    for each in (ours, plain):
        each.dither(0)
    adam = FlatAdamW(ours, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)
    state = {"first": torch.zeros(plain.size), "second": torch.zeros(plain.size)}
    for step in range(1, 4):
        flat = gradient_of(ours, step).to(dtype)
        written_out(plain, state, flat, step, 1e-2)
        adam.step(flat, 1e-2)
        for one, other in [(ours.values, plain.values), (ours.low, plain.low), (adam.first, state["first"])]:
            assert torch.equal(one, other)
        assert torch.equal(adam.second, state["second"])


def test_gradients_are_those_of_this_update_alone():
    """The first is laid down, a second of the same weights added to it, and those that none came to are zeros."""
    used, tied, left = (torch.nn.Parameter(torch.ones(70, 3, dtype=torch.bfloat16)) for _ in range(3))
    weights = FlatWeights([("used", used), ("tied", tied), ("left", left)])
    for passes, dtype in ((1, torch.bfloat16), (1, torch.bfloat16), (2, torch.float32)):
        total = weights.open_gradients(passes=passes)
        (used * 3).sum().backward()
        for factor in (2, 5):
            (tied * factor).sum().backward()
        assert total.dtype == dtype
        found = [total[place.start : place.stop].unique().tolist() for place in weights.places]
        assert found == [[3.0], [7.0], [0.0]] and total.sum() == 210 * 10
        weights.drop_gradients()


def test_parameters_see_each_step_in_place():
    named = parameters(torch.bfloat16)
    weights = FlatWeights(named)
    before = named[1][1].detach().clone()
    FlatAdamW(weights, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, clip=None).step(gradient_of(weights, 0), 0.1)
    assert not torch.equal(named[1][1].detach(), before)
    assert all(p.untyped_storage().data_ptr() == weights.values.untyped_storage().data_ptr() for _, p in named)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    weights = FlatWeights(parameters())
    optimizer = FlatAdamW(weights, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, clip=1.0)
    flat = gradient_of(weights, 0)
    flat[5] = bad
    before = weights.values.clone()
    assert not torch.isfinite(torch.tensor(optimizer.step(flat, 0.1)))
    assert torch.equal(weights.values, before) and optimizer.steps == 0 and not optimizer.first.any()


def test_small_steps_are_not_lost_in_bfloat16():
    """1000 steps of 1e-5 move a weight of 1.0 by 0.01, although bfloat16 near 1 has steps of 0.0078."""
    weights = FlatWeights([("w", torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16)))])
    optimizer = FlatAdamW(weights, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, clip=None)
    for _ in range(1000):
        optimizer.step(torch.ones(64), 1e-5)
    torch.testing.assert_close(weights.master(0, 64), torch.full((64,), 0.99), rtol=0, atol=2e-4)
    assert weights.values.float().max() < 1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_dither_loses_no_update_on_average(sign):
    """A step of a tenth of the spacing of bfloat16 moves a tenth of the weights by one spacing; without, none."""
    start, spacing = sign * 1.25, 2**-7
    moved = {}
    for dithered in (True, False):
        weights = FlatWeights([("w", torch.nn.Parameter(torch.full((100_000,), start, dtype=torch.bfloat16)))])
        if dithered:
            weights.dither(0)
        assert (weights.values[:100_000] == start).all(), "what the model computes is unchanged"
        master = weights.master(0, 100_000)
        weights.set_master(0, 100_000, master + 0.1 * spacing)
        moved[dithered] = (weights.values[:100_000].float() - start).mean().item()
    assert moved[True] == pytest.approx(0.1 * spacing, rel=0.05) and moved[False] == 0


def test_dither_keeps_zero_and_every_value():
    draw = torch.Generator().manual_seed(2)
    values = torch.randn(5000, generator=draw) * 10.0 ** torch.randint(-30, 30, (5000,), generator=draw)
    values[:100] = 0
    values[50:100] = -0.0
    weights = FlatWeights([("w", torch.nn.Parameter(values.bfloat16()))])
    before = weights.values.clone()
    weights.dither(1)
    master = weights.master(0, weights.size)
    assert torch.isfinite(master).all() and torch.equal(weights.values, before)
    weights.set_master(0, weights.size, master.clone())
    assert torch.equal(weights.values, before)
    assert (master[:100] == 0).all() and (master[100:5000] != before[100:5000].float()).float().mean() > 0.99


def test_masters_are_placed_no_sooner_than_they_are_used_and_then_as_if_it_had_been_at_once():
    values = torch.linspace(-1, 1, 4096).bfloat16()
    weights = FlatWeights([("w", torch.nn.Parameter(values))])
    weights.dither(3)
    assert weights._rounded_values is None, "what only samples draws nothing"
    low = weights.low
    wanted = torch.zeros(4096, dtype=torch.int16).random_(-(2**15), 2**15, generator=torch.Generator().manual_seed(3))
    assert torch.equal(low, wanted.masked_fill(values == 0, 0)) and weights.low is low


def test_schedules():
    optim = config_of(optim__lr=2.0, optim__lr_warmup_steps=3, optim__min_lr_ratio=0.1).trainer_common.optim
    constant = LearningRateSchedule.from_config(optim, None)
    assert [constant.rate_at(step) for step in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    linear = LearningRateSchedule(1.0, "linear", 0, 0.1, 10)
    assert (
        linear.rate_at(0) == 1.0
        and linear.rate_at(5) == pytest.approx(0.55)
        and linear.rate_at(10) == pytest.approx(0.1)
    )
    cosine = LearningRateSchedule(1.0, "cosine", 0, 0.0, 10)
    assert (
        cosine.rate_at(0) == 1.0
        and cosine.rate_at(5) == pytest.approx(0.5)
        and cosine.rate_at(12) == pytest.approx(0.0)
    )


def test_a_falling_schedule_needs_an_end():
    optim = config_of(optim__lr_schedule="cosine").trainer_common.optim
    with pytest.raises(ConfigError, match="last step"):
        LearningRateSchedule.from_config(optim, None)
