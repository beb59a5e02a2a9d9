"""Learning from given replies: formulas by hand, finite differences, and an update held to autograd over the model's
own forward pass."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from ajet.algorithm.losses.dpo import DpoLoss
from ajet.algorithm.recorded_models import make_recorded_reference
from ajet.algorithm.supervised_batch import build_likelihood_batch, build_pairs_batch, list_samples
from ajet.backbone.local.trainer import Trainer
from tests.support.local_fixtures import config_of, episode_of, group_of, plain_logprobs, tiny_qwen3

CHOSEN, REJECTED = [1.5, -3.0, 0.0, 40.0], [0.5, 2.0, 0.0, -800.0]


def by_hand(chosen, rejected, beta, wrong):
    h = beta * (chosen - rejected)
    return (1 - wrong) * math.log1p(math.exp(-h)) + wrong * math.log1p(math.exp(h))


@pytest.mark.parametrize("beta, wrong", [(0.1, 0.0), (0.5, 0.2)])
def test_the_loss_of_a_pair_and_its_slope(beta, wrong):
    found = DpoLoss(beta, wrong)(np.array(CHOSEN), np.array(REJECTED))
    for index, (c, r) in enumerate(zip(CHOSEN, REJECTED, strict=True)):
        assert found.loss[index] == pytest.approx(by_hand(c, r, beta, wrong), rel=1e-12)
        by_chosen = (by_hand(c + 1e-5, r, beta, wrong) - by_hand(c - 1e-5, r, beta, wrong)) / 2e-5
        by_rejected = (by_hand(c, r + 1e-5, beta, wrong) - by_hand(c, r - 1e-5, beta, wrong)) / 2e-5
        assert -found.slope[index] == pytest.approx(by_chosen, abs=1e-8)
        assert found.slope[index] == pytest.approx(by_rejected, abs=1e-8)
    assert found.loss[2] == pytest.approx(math.log(2)), "where nothing has changed it is a coin's"


def groups_of(repeats):
    """Three groups, one reply in two timelines among them."""
    made = []
    for number, lengths in enumerate([(3,), (5, 2), (4,)]):
        episodes = [episode_of(None, lengths, uuid=f"{number}/{k}", seed=10 * number + k) for k in range(repeats)]
        made.append(group_of(*episodes))
    return made


def config(objective, **changes):
    made = config_of(algorithm__policy_loss="sft", optim__lr=0.01, optim__grad_clip=None, **changes)
    made.sft.objective = objective
    return made


def norm_of(model, loss):
    loss.backward()
    return math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters() if p.grad is not None))


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_an_update_has_the_likelihood_of_the_models_own_forward_pass(aggregation):
    settings = config("sft")
    settings.sft.loss_aggregation = aggregation
    model, groups = tiny_qwen3(), groups_of(1)
    plain = copy.deepcopy(model)
    nll = [[-plain_logprobs(plain, sample) for sample in list_samples([group])] for group in groups]
    if aggregation == "token":
        loss = torch.cat([row for rows in nll for row in rows]).mean()
    else:
        loss = torch.stack([torch.cat(rows).mean() for rows in nll]).mean()
    batch = build_likelihood_batch(groups, settings, step=1)
    trainer = Trainer(model, settings)
    trainer.version = 3
    metrics = trainer.update(batch)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm_of(plain, loss), rel=1e-4)
    assert {outcome.step for outcome in batch.outcomes.values()} == {1} and batch.trained_tokens == 14
    assert not {"mismatch_kl", "stale_fraction"} & metrics.keys(), "nobody sampled it: there is nothing to compare"


def test_an_update_on_pairs_has_the_gradient_of_their_loss():
    settings = config("dpo")
    settings.sft.beta, settings.sft.label_smoothing = 0.3, 0.1
    model, reference, groups = tiny_qwen3(seed=1), tiny_qwen3(seed=2), groups_of(2)
    plain = copy.deepcopy(model)

    def scores(samples):
        rows = []
        for which in (model, reference):
            found = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
            for row, sample in zip(found, samples, strict=True):
                with torch.no_grad():
                    row[sample.timeline.mask] = plain_logprobs(which, sample).numpy()
            rows.append(found)
        return rows[0], rows[1]

    losses = []
    for group in groups:
        gained = []
        for episode in group.episodes:
            samples = list_samples([group_of(episode)])
            own = sum(plain_logprobs(plain, sample).sum() for sample in samples)
            gained.append(own - sum(plain_logprobs(reference, sample).sum() for sample in samples).detach())
        h = 0.3 * (gained[0] - gained[1])
        losses.append(-0.9 * torch.nn.functional.logsigmoid(h) - 0.1 * torch.nn.functional.logsigmoid(-h))
    loss = torch.stack(losses).mean()
    batch = build_pairs_batch(groups, settings, scores, step=1)
    metrics = Trainer(model, settings).update(batch) | batch.metrics
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm_of(plain, loss), rel=1e-4)
    assert 0 <= metrics["dpo/accuracy"] <= 1
    again = build_pairs_batch(groups, settings, make_recorded_reference(batch.outcomes), step=1)
    for uuid, outcome in again.outcomes.items():
        assert outcome.advantage == pytest.approx(batch.outcomes[uuid].advantage, rel=1e-6), "as a proof does it"
    assert {o.advantage > 0 for e, o in batch.outcomes.items() if e.endswith("/0")} == {True}
    assert {o.advantage < 0 for e, o in batch.outcomes.items() if e.endswith("/1")} == {True}
