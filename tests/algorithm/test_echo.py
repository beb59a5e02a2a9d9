"""ECHO: which tokens the environment wrote, and their loss by hand and by finite differences."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.echo import find_observed_tokens
from ajet.algorithm.token_loss import TokenLoss
from ajet.backbone.local.losses import StepLoss
from ajet.backbone.local.trainer import Trainer
from ajet.context_tracker.packing import pack
from ajet.schema.batch import TrainingBatch
from ajet.schema.errors import UserError
from tests.algorithm.test_loss_terms import numeric_gradient
from tests.support.local_fixtures import (
    calls_of,
    config_of,
    episode_of,
    group_of,
    plain_logprobs,
    sample_of,
    tiny_qwen3,
)

WEIGHT = 0.3
IDS = [9, 8, 7, 1, 2, 40, 41, 42, 3, 4, 50, 5]
"""A prompt of three tokens, replies [1 2], [3 4] and [5], observations [40 41 42] and [50]."""
RUNS = [(3, 5), (8, 10), (11, 12)]


def config(**changes):
    return config_of(algorithm__adv_estimator="echo", algorithm__observation_weight=WEIGHT, **changes)


def played(reward, uuid):
    """An episode of three turns."""
    sample = sample_of(IDS, RUNS)
    like = episode_of(reward, uuid=uuid)
    return replace(like, calls=calls_of(sample.timeline, like.calls[0]), timelines=[sample.timeline])


def batch_of(*rewards, **changes):
    episodes = [played(reward, str(at)) for at, reward in enumerate(rewards)]
    return assign_credit([group_of(*episodes)], config(**changes))


def test_observations_are_the_texts_between_replies():
    batch = batch_of(1.0, 0.0)
    assert batch.metrics["credit/observed_tokens"] == 8 and batch.trained_tokens == 10
    for sample in batch.samples:
        expected = np.zeros(len(IDS))
        expected[[5, 6, 7, 10]] = WEIGHT / 8
        np.testing.assert_allclose(sample.observed, expected, rtol=1e-6)


def test_a_shared_observation_counts_once():
    episode = played(1.0, "a")
    short = sample_of(IDS[:10], RUNS[:2])
    short.timeline.leaf = 1
    masks = find_observed_tokens(episode.calls, [sample_of(IDS, RUNS), short])
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[5, 6, 7, 10], []]


def test_a_rewritten_history_is_no_observation():
    episode = played(1.0, "a")
    episode.calls[1] = replace(episode.calls[1], fork="client_edit")
    [mask] = find_observed_tokens(episode.calls, [sample_of(IDS, RUNS)])
    assert np.flatnonzero(mask).tolist() == [10]


def test_equal_rewards_still_train_the_observations():
    batch = batch_of(1.0, 1.0)
    assert len(batch.samples) == 2 and batch.metrics["credit/left_out_groups"] == 0
    assert not batch_of(1.0, 1.0, algorithm__dynamic_sampling=True).samples


def test_the_loss_by_hand_and_by_finite_differences():
    samples = batch_of(1.0, 0.0).samples
    settings = config()
    loss = StepLoss(
        samples, TokenLoss.from_settings(settings.trainer_common, open_algorithm(settings)), 1.0, compare_engine=False
    )
    [row] = pack(samples, 4096)
    assert row.targets.token.size == 18
    start = np.random.default_rng(0).normal(-1, 0.5, 18)
    kinds = [IDS[at] >= 40 for at in row.targets.offset]
    advantages = [samples[at].advantages[3] for at in row.targets.sample]

    def by_hand(values):
        total = 0.0
        for x, observed, advantage, old in zip(values, kinds, advantages, start, strict=True):
            total += -WEIGHT / 8 * x if observed else -float(advantage) / 10 * np.exp(x - old)
        return total

    logprobs = torch.tensor(start, requires_grad=True)
    value = loss.row(row.targets, torch.device("cpu"), None)(logprobs, torch.zeros(18), slice(0, 18))
    value.backward()
    assert value.item() == pytest.approx(by_hand(start), rel=1e-5)
    np.testing.assert_allclose(logprobs.grad.numpy(), numeric_gradient(by_hand, list(start)), rtol=1e-4)
    means = loss.tally.means()
    assert loss.tally.tokens == 10
    assert means["observation_loss"] == pytest.approx(-start[kinds].mean(), rel=1e-6)


@pytest.mark.slow
def test_the_trainer_learns_what_the_environment_writes():
    model = tiny_qwen3()
    twin = copy.deepcopy(model)
    trainer = Trainer(model, config(optim__lr=0.01))
    samples = batch_of(1.0, 1.0).samples
    whole = sample_of(IDS, [(5, 8), (10, 11)])
    trainer.add_gradients(StepLoss(samples, trainer.tokens, 1.0, compare_engine=False), 1.0)
    (-WEIGHT * plain_logprobs(twin, whole).mean()).backward()
    weights = trainer.policy.weights
    for place in weights.places:
        expected = dict(twin.named_parameters())[place.name].grad
        found = weights.gradients[place.start : place.stop].view(place.shape)
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max() + 1e-6, place.name
    weights.drop_gradients()
    losses = [trainer.update(TrainingBatch(step, samples))["observation_loss"] for step in range(1, 6)]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_other_backbones_refuse_it(backbone):
    settings = config()
    settings.backbone = backbone
    with pytest.raises(UserError, match=f"{backbone}, which cannot train on the text of the environment"):
        open_algorithm(settings)
