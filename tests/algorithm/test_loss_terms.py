"""Losses and estimators against hand-written formulas and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ajet.algorithm.loss_terms import estimate_kl, policy_loss
from ajet.algorithm.weights import compute_mini_batch_scale, compute_token_weights
from tests.support.local_fixtures import sample_of

LOGPROBS = [-0.1, -2.0, -1.0, -0.5, -3.0, -1.2, -0.7, -0.2]
OLD = [-0.6, -1.0, -1.05, -0.5, -1.0, -2.5, -0.75, -4.0]
ADVANTAGES = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -2.0, -0.5]


def clipped_by_hand(logprob, old, advantage, low, high, dual):
    ratio = math.exp(logprob - old)
    clipped = min(max(ratio, 1 - low), 1 + high)
    objective = min(ratio * advantage, clipped * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


def huber(gap, rounding=0.01):
    """|gap|, smooth below `rounding`."""
    return abs(gap) - rounding / 2 if abs(gap) > rounding else gap**2 / (2 * rounding)


def numeric_gradient(function, values, step=1e-6):
    gradient = []
    for index in range(len(values)):
        up, down = list(values), list(values)
        up[index] += step
        down[index] -= step
        gradient.append((function(up) - function(down)) / (2 * step))
    return gradient


@pytest.mark.parametrize("low, high, dual", [(0.2, 0.2, None), (0.2, 0.28, None), (0.3, 0.1, 3.0), (0.2, 0.2, 5.0)])
def test_policy_loss(low, high, dual):
    logprobs = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    old, advantages = torch.tensor(OLD, dtype=torch.float64), torch.tensor(ADVANTAGES, dtype=torch.float64)
    loss, clipped = policy_loss(logprobs, old, advantages, clip_low=low, clip_high=high, clip_dual=dual)

    def by_hand(values):
        return sum(clipped_by_hand(x, o, a, low, high, dual) for x, o, a in zip(values, OLD, ADVANTAGES, strict=True))

    assert loss.sum().item() == pytest.approx(by_hand(LOGPROBS), rel=1e-12)
    loss.sum().backward()
    numeric = numeric_gradient(by_hand, LOGPROBS)
    np.testing.assert_allclose(logprobs.grad.numpy(), numeric, atol=1e-7)
    np.testing.assert_array_equal(clipped.numpy(), np.abs(numeric) < 1e-9)
    assert clipped.any() and not clipped.all()


def test_on_policy_gradient_is_reinforce():
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    advantages = torch.tensor(ADVANTAGES)
    loss, clipped = policy_loss(logprobs, logprobs.detach(), advantages, clip_low=0.2, clip_high=0.2, clip_dual=3.0)
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)
    assert not clipped.any()


@pytest.mark.parametrize(
    "name, by_hand",
    [
        ("k1", lambda p, r: p - r),
        ("kl", lambda p, r: p - r),
        ("k2", lambda p, r: (p - r) ** 2 / 2),
        ("mse", lambda p, r: (p - r) ** 2 / 2),
        ("k3", lambda p, r: math.exp(r - p) - 1 - (r - p)),
        ("low_var_kl", lambda p, r: math.exp(r - p) - 1 - (r - p)),
        ("abs", lambda p, r: huber(p - r)),
    ],
)
def test_kl_estimators(name, by_hand):
    policy = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([x + 0.02 for x in OLD], dtype=torch.float64)
    found = estimate_kl(policy, reference, name)

    def total(values):
        return sum(by_hand(p, r + 0.02) for p, r in zip(values, OLD, strict=True))

    assert found.sum().item() == pytest.approx(total(LOGPROBS), rel=1e-12)
    found.sum().backward()
    np.testing.assert_allclose(policy.grad.numpy(), numeric_gradient(total, LOGPROBS), atol=1e-6)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_divergence(name):
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    exact = (policy * (policy / reference).log()).sum()
    expectation = (policy * estimate_kl(policy.log(), reference.log(), name)).sum()
    torch.testing.assert_close(expectation, exact)


def test_an_outlier_does_not_make_k3_infinite():
    assert torch.isfinite(estimate_kl(torch.tensor([-500.0]), torch.tensor([0.0]), "k3")).all()


def test_unknown_estimator():
    with pytest.raises(ValueError, match="k4"):
        estimate_kl(torch.zeros(1), torch.zeros(1), "k4")


@pytest.mark.parametrize("aggregation", ["token", "sequence", "sequence-sum"])
def test_mini_batches_have_the_weights_of_their_own_batch(aggregation):
    whole = [sample_of(range(9), [(1, 1 + n)], episode=str(n)) for n in (2, 4, 6, 8)]
    for sample, weight in zip(whole, compute_token_weights(aggregation, [2, 4, 6, 8], 50), strict=True):
        sample.weight = weight
    part = whole[1:3]
    scale = compute_mini_batch_scale(aggregation, whole, part)
    found = [sample.weight * scale for sample in part]
    np.testing.assert_allclose(found, compute_token_weights(aggregation, [4, 6], 50))


@pytest.mark.parametrize("aggregation", ["token", "sequence", "sequence-sum"])
def test_a_batch_without_an_episode_has_no_weights(aggregation):
    assert compute_token_weights(aggregation, [], 50) == []
    assert all(np.isfinite(compute_token_weights(aggregation, [0, 0], 50)))
