"""Distillation over the vocabulary: the divergence by hand and by finite differences, and the trainer's gradient."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.gkd import compute_reverse_kl
from ajet.backbone.local.losses import StepLoss
from ajet.backbone.local.packed_forward import PackedForward
from ajet.backbone.local.trainer import Trainer
from ajet.schema.batch import TrainingBatch
from ajet.schema.errors import UserError
from tests.algorithm.test_loss_terms import numeric_gradient
from tests.support.local_fixtures import config_of, episode_of, group_of, random_samples, tiny_qwen3

POLICY, TEACHER = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]


def config(**changes):
    path = {"algorithm__teacher__path": "embedded:tiny-tools"}
    return config_of(algorithm__adv_estimator="gkd", **{**path, **changes})


def logits(probabilities):
    return torch.tensor([probabilities]).log()


def by_hand(policy, teacher):
    return sum(p * np.log(p / q) for p, q in zip(policy, teacher, strict=True))


@pytest.mark.parametrize(
    ("top_k", "policy", "teacher"),
    [
        (None, POLICY, TEACHER),
        (4, POLICY, TEACHER),
        (2, [0.1, 0.2, 0.7], [0.4, 0.3, 0.3]),
        (1, [0.1, 0.9], [0.4, 0.6]),
    ],
)
def test_the_divergence_by_hand(top_k, policy, teacher):
    found = compute_reverse_kl(logits(POLICY), logits(TEACHER), top_k)
    assert found.item() == pytest.approx(by_hand(policy, teacher), rel=1e-5)


@pytest.mark.parametrize("top_k", [None, 1, 3])
def test_its_gradient_by_finite_differences(top_k):
    draw = np.random.default_rng(0)
    own, other = draw.normal(size=6), draw.normal(size=6)
    leaf = torch.tensor(own[None], dtype=torch.float32, requires_grad=True)
    compute_reverse_kl(leaf, torch.tensor(other[None]), top_k).sum().backward()
    kept = np.argsort(-other)[: top_k or 6]

    def joined(values):
        p = np.exp(values) / np.exp(values).sum()
        return [*p[kept], *([1 - p[kept].sum()] if top_k else [])]

    numeric = numeric_gradient(lambda values: by_hand(joined(np.array(values)), joined(other)), list(own))
    np.testing.assert_allclose(leaf.grad[0].numpy(), numeric, atol=1e-5)


def test_fewer_tokens_give_a_smaller_divergence():
    draw = np.random.default_rng(1)
    own, other = (torch.from_numpy(draw.normal(size=(20, 30))) for _ in "ab")
    full = compute_reverse_kl(own, other, None)
    before = torch.zeros(20)
    for top_k in (1, 4, 29):
        found = compute_reverse_kl(own, other, top_k)
        assert bool((found >= before - 1e-6).all() and (found <= full + 1e-6).all())
        before = found


def test_every_scored_attempt_is_trained_without_rewards():
    batch = assign_credit([group_of(episode_of(0.0, uuid="a"))], config())
    assert batch.trained_tokens == 3 and batch.outcomes["a"].advantage == 0
    group = group_of(episode_of(1.0, uuid="a"), episode_of(0.0, uuid="b"))
    mixed = assign_credit([group], config(algorithm__teacher__reward_weight=2.0))
    assert mixed.outcomes["a"].advantage == pytest.approx(2 * 0.5 / (np.sqrt(0.5) + 1e-6))


def plain_logits(model, sample):
    """[T_e, V] logits that predict the trained tokens, by the model's own forward pass."""
    ids = torch.from_numpy(sample.timeline.ids).long()
    return model(input_ids=ids[None], use_cache=False).logits[0][np.flatnonzero(sample.timeline.mask) - 1]


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [None, 5])
def test_the_trainer_adds_the_divergence_at_every_turn(top_k):
    model, other = tiny_qwen3(), tiny_qwen3(seed=7)
    twin, plain_teacher, samples = copy.deepcopy(model), copy.deepcopy(other), random_samples()
    settings = config(algorithm__teacher__top_k=top_k, algorithm__teacher__weight=2.0, micro_batch_tokens=40)
    trainer = Trainer(model, settings, teacher=PackedForward(other))
    loss = StepLoss(samples, trainer.tokens, 1.0, compare_engine=False)
    trainer.add_gradients(loss, 1.0)
    expected = 0.0
    for sample in samples:
        values = compute_reverse_kl(plain_logits(twin, sample), plain_logits(plain_teacher, sample).detach(), top_k)
        advantages = torch.from_numpy(sample.advantages[sample.timeline.mask])
        chosen = torch.from_numpy(sample.timeline.ids[sample.timeline.mask]).long()[:, None]
        logprobs = plain_logits(twin, sample).log_softmax(-1).gather(1, chosen).squeeze(1)
        (sample.weight * (2.0 * values - advantages * logprobs)).sum().backward()
        expected += sample.weight * (2.0 * values - advantages).sum().item()
    assert loss.tally.loss == pytest.approx(expected, rel=1e-4)
    weights = trainer.policy.weights
    for place in weights.places:
        wanted = dict(twin.named_parameters())[place.name].grad
        found = weights.gradients[place.start : place.stop].view(place.shape)
        assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max() + 1e-6, place.name


@pytest.mark.slow
def test_the_policy_becomes_its_teacher():
    trainer = Trainer(tiny_qwen3(), config(optim__lr=0.01), teacher=PackedForward(tiny_qwen3(seed=7)))
    samples = random_samples()
    for sample in samples:
        sample.advantages[:] = 0
    found = [trainer.update(TrainingBatch(step, samples))["distillation/reverse_kl"] for step in range(1, 9)]
    assert found[-1] < found[0] / 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algorithm__teacher__path": None}, "no teacher is fully set"),
        ({"algorithm__teacher__path": None, "algorithm__teacher__base_url": "http://x/v1"}, "a server does not return"),
        ({"rollout__temperature": 0.9}, "temperature 1"),
    ],
)
def test_what_it_cannot_do_is_refused(changes, why):
    with pytest.raises(UserError, match=why):
        open_algorithm(config(**changes))


def test_verl_refuses_it_by_name():
    settings = config()
    settings.backbone = "verl"
    with pytest.raises(UserError, match="gkd is not possible on the backbone verl"):
        open_algorithm(settings)
