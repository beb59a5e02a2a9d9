"""Sampling: a token is its distribution's inverse at its own number, and is told with the right logprobs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ajet.engine.contract import DrawKey, Sampling
from ajet.engine.draws import draw_uniforms, hash_draw_key
from ajet.engine.transformers.sampling import Sampler


def reference(logits: np.ndarray, settings: Sampling) -> np.ndarray:
    """[V] probabilities after temperature, top-k, top-p, the slow way."""
    scaled = logits.astype(np.float64) / settings.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: settings.top_k] if settings.top_k > 0 else order
    p_kept = p[kept] / p[kept].sum()
    nucleus = int(np.searchsorted(np.cumsum(p_kept), settings.top_p - 1e-12)) + 1
    kept = kept[:nucleus]
    out = np.zeros_like(p)
    out[kept] = p[kept] / p[kept].sum()
    return out


@pytest.mark.parametrize("vocabulary", [5, 256, 379, 5000])
@pytest.mark.parametrize(
    "settings",
    [
        Sampling(1),
        Sampling(1, temperature=0.6),
        Sampling(1, temperature=1.7, top_k=4),
        Sampling(1, top_p=0.8),
        Sampling(1, temperature=0.9, top_k=50, top_p=0.5),
    ],
)
def test_token_is_the_inverse_of_its_distribution(vocabulary: int, settings: Sampling) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(0, 2, (40, vocabulary)).astype(np.float32)
    numbers = rng.random(40)
    drawn = Sampler().draw(torch.from_numpy(logits), [settings] * 40, numbers)
    for b in range(40):
        p = reference(logits[b], settings)
        ends = np.cumsum(p)
        token = drawn.ids[b]
        assert ends[token] - p[token] - 1e-5 <= numbers[b] <= ends[token] + 1e-5
        assert drawn.logprobs[b] == pytest.approx(np.log(p[token]), abs=1e-4)
        plain = reference(logits[b], Sampling(1))
        assert drawn.logprobs_unit[b] == pytest.approx(np.log(plain[token]), abs=1e-4)


def test_rows_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 2, (6, 700)).astype(np.float32))
    numbers = rng.random(6)
    settings = [
        Sampling(1),
        Sampling(1, temperature=0.0),
        Sampling(1, temperature=0.5),
        Sampling(1, top_k=3),
        Sampling(1, top_p=0.3, top_logprobs=4),
        Sampling(1, temperature=2.0, top_logprobs=2),
    ]
    sampler = Sampler()
    together = sampler.draw(logits, settings, numbers)
    for b in range(6):
        alone = sampler.draw(logits[b : b + 1], settings[b : b + 1], numbers[b : b + 1])
        assert alone.ids[0] == together.ids[b]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[b], abs=1e-6)
        assert alone.logprobs_unit[0] == pytest.approx(together.logprobs_unit[b], abs=1e-6)
        assert [t for t, _ in alone.top[0]] == [t for t, _ in together.top[b]]
    assert [len(top) for top in together.top] == [0, 0, 0, 0, 4, 2]


def test_greedy_takes_the_first_of_the_most_likely() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, -1.0, 2.0, 0.0]])
    drawn = Sampler().draw(logits, [Sampling(1, temperature=0.0)] * 2, np.array([0.99, 0.99]))
    assert drawn.ids == [1, 0]
    assert drawn.logprobs == [0.0, 0.0]
    assert drawn.logprobs_unit[1] == pytest.approx(torch.log_softmax(logits[1], -1)[0].item(), abs=1e-6)


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-53])
def test_an_impossible_token_is_never_drawn(number: float) -> None:
    possible = {3, 300, 511}
    logits = torch.full((1, 600), float("-inf"))
    logits[0, list(possible)] = 0.0
    drawn = Sampler().draw(logits, [Sampling(1)], np.array([number]))
    assert drawn.ids[0] in possible
    assert drawn.logprobs[0] == pytest.approx(-np.log(3), abs=1e-6)


def test_logits_stay_as_they_were() -> None:
    logits = torch.randn(3, 300)
    before = logits.clone()
    Sampler().draw(logits, [Sampling(1, temperature=0.5, top_k=2, top_p=0.5)] * 3, np.full(3, 0.4))
    assert torch.equal(logits, before)


def test_numbers_are_named_by_key_and_position() -> None:
    streams = np.array(
        [hash_draw_key(DrawKey(0, t, r, c)) for t in range(20) for r in range(20) for c in range(5)], np.uint64
    )
    assert len(set(streams.tolist())) == 2000
    grid = np.stack([draw_uniforms(streams, np.full(2000, p, np.uint64)) for p in range(50)])
    assert np.array_equal(draw_uniforms(streams[7:8], np.array([31], np.uint64)), grid[31, 7:8])
    assert grid.min() >= 0.0 and grid.max() < 1.0
    assert abs(grid.mean() - 0.5) < 0.003 and abs(grid.var() - 1 / 12) < 0.002
    counts = np.histogram(grid, 100, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 160  # 99 degrees of freedom: beyond 160 once in ten thousand
    for left, right in ((grid[:-1], grid[1:]), (grid[:, :-1], grid[:, 1:])):  # neighbours in position, and in key
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.015


def test_negative_and_large_keys_are_told_apart() -> None:
    keys = [DrawKey(s, t, 0, 0) for s in (-1, 0, 1 << 63) for t in (-1, 0, 1 << 40)]
    assert len({hash_draw_key(key) for key in keys}) == len(keys)
