"""The value head: its loss by differences, what it adds to the policy's gradient, what is saved, what is undone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ajet.algorithm.loss_terms import value_loss
from ajet.backbone.local.trainer import Trainer
from ajet.schema.batch import TrainingBatch
from ajet.schema.errors import UserError
from tests.support.local_fixtures import config_of, random_samples, tiny_qwen3, weights_of

pytestmark = pytest.mark.slow


def test_the_value_loss_and_its_slope():
    """Beyond the bound on the side that the return is on, the loss stays; 0.5 (v - R)^2 elsewhere."""
    values = torch.tensor([0.2, 0.9, 0.9, -0.8], dtype=torch.float64, requires_grad=True)
    old, returns = torch.zeros(4, dtype=torch.float64), torch.tensor([1.0, 1.0, -1.0, 0.0], dtype=torch.float64)
    loss, clipped = value_loss(values, old, returns, 0.5)
    torch.testing.assert_close(loss.detach(), torch.tensor([0.32, 0.125, 1.805, 0.32], dtype=torch.float64))
    assert clipped.tolist() == [False, True, False, False]
    (slope,) = torch.autograd.grad(loss.sum(), values)
    for at in range(4):
        moved = [values.detach().clone() for _ in range(2)]
        moved[0][at] -= 1e-6
        moved[1][at] += 1e-6
        below, above = (float(value_loss(each, old, returns, 0.5)[0].sum()) for each in moved)
        assert float(slope[at]) == pytest.approx((above - below) / 2e-6, abs=1e-6)
    assert value_loss(values, old, returns, None)[0].detach().tolist() == pytest.approx([0.32, 0.005, 1.805, 0.32])


def critic_config(**more):
    return config_of(algorithm__adv_estimator="gae", optim__lr=0.01, **more)


def told(samples, trainer, seed=3):
    """Samples with what a critic expected and what came."""
    draw = np.random.default_rng(seed)
    for sample, values in zip(samples, trainer.values(samples), strict=True):
        sample.values = values
        sample.returns = np.where(sample.timeline.mask, draw.normal(size=values.size), 0).astype(np.float32)
    return samples


def stirred(trainer):
    """With a head that says something."""
    trainer.critic.weights.values.copy_(torch.linspace(-3, 3, trainer.critic.weights.size))
    return trainer


def gradients(trainer, samples):
    """Of the policy and of the head."""
    from ajet.backbone.local.losses import StepLoss
    from ajet.backbone.local.value_head import StepValueLoss

    critic = StepValueLoss(trainer.critic, samples, 1.0)
    loss = StepLoss(samples, trainer.tokens, 1.0, compare_engine=False)
    trainer.add_gradients(loss, 1.0, critic=critic)
    found = trainer.policy.weights.gradients.clone(), trainer.critic.weights.gradients.clone()
    trainer.policy.weights.drop_gradients()
    trainer.critic.weights.drop_gradients()
    return *found, critic.tally


def test_the_gradients_are_those_of_the_losses_by_differences(monkeypatch):
    """Of the head, the value loss; of the policy, its own loss plus vf_coef times the value loss: along a direction of
    all its weights. In rows of a few tokens and chunks of fewer, so that sums over both are in it."""
    monkeypatch.setattr("ajet.backbone.local.packed_forward.CHUNK_BYTES", 4 * 97 * 5)
    trainer = stirred(Trainer(tiny_qwen3(), critic_config(algorithm__critic__vf_coef=0.5, micro_batch_tokens=24)))
    alone = stirred(Trainer(tiny_qwen3(), critic_config(micro_batch_tokens=24)))
    samples = told(random_samples(), trainer)
    both, head, tally = gradients(trainer, samples)
    policy, same, _ = gradients(alone, samples)
    torch.testing.assert_close(head, same, rtol=1e-4, atol=1e-6)

    def loss():
        total = 0.0
        for sample, values in zip(samples, trainer.values(samples), strict=True):
            mask = sample.timeline.mask
            v, old, came = (torch.from_numpy(each[mask]).double() for each in (values, sample.values, sample.returns))
            total += sample.weight * float(value_loss(v, old, came, 0.5)[0].sum())
        return total

    assert tally.loss == pytest.approx(loss(), rel=1e-5)
    for values, slope in (
        (trainer.critic.weights.values, head),
        (trainer.policy.weights.values, (both - policy) / 0.5),
    ):
        direction = slope / slope.norm()
        size = 3e-3
        start = values.clone()
        values.copy_(start + size * direction)
        above = loss()
        values.copy_(start - size * direction)
        below = loss()
        values.copy_(start)
        assert (above - below) / (2 * size) == pytest.approx(float(slope.norm()), rel=2e-2)


@pytest.mark.extra_slow
def test_without_vf_coef_the_policy_moves_as_without_a_head_and_not_at_all_while_it_warms_up():
    plain = Trainer(tiny_qwen3(), config_of(optim__lr=0.01))
    plain.update(TrainingBatch(2, random_samples()))
    trainer = stirred(Trainer(tiny_qwen3(), critic_config(algorithm__critic__warmup=1)))
    before, head = weights_of(trainer), trainer.critic.weights.values.clone()
    first = trainer.update(TrainingBatch(1, told(random_samples(), trainer)))
    assert torch.equal(weights_of(trainer), before) and trainer.version == 1 and first["grad_norm"] > 0
    assert not torch.equal(trainer.critic.weights.values, head)
    trainer.update(TrainingBatch(2, told(random_samples(), trainer)))
    assert torch.equal(weights_of(trainer), weights_of(plain))


def test_a_rehearsal_takes_what_the_head_takes_and_leaves_it_as_it_was(monkeypatch):
    trainer, kept = stirred(Trainer(tiny_qwen3(), critic_config())), []
    before = [tensor.clone() for tensor in trainer.critic.tensors().values()]
    monkeypatch.setattr("ajet.backbone.local.value_head.StepValueLoss.keep", lambda *given: kept.append(given))
    trainer.rehearse(random_samples())
    assert kept and all(map(torch.equal, trainer.critic.tensors().values(), before))
    assert trainer.critic.weights.gradients is None and trainer.critic.optimizer.steps == 0


@pytest.mark.extra_slow
def test_the_head_learns_what_came():
    trainer = Trainer(tiny_qwen3(), critic_config(algorithm__critic__warmup=99))
    samples = random_samples(size=2)
    losses = []
    for step in range(1, 13):
        told(samples, trainer)
        losses.append(trainer.update(TrainingBatch(step, samples))["critic/loss"])
    assert losses[-1] < losses[0] / 3, losses


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.extra_slow), 4])
def test_a_checkpoint_restores_every_bit_of_it(tmp_path, rank):
    config = critic_config(lora__rank=rank, mini_batch_num=2, algorithm__critic__vf_coef=0.1)
    trainer = Trainer(tiny_qwen3(), config)
    trainer.update(TrainingBatch(1, told(random_samples(1), trainer)))
    trainer.save(tmp_path, None)
    last = trainer.update(TrainingBatch(2, told(random_samples(2), trainer)))
    other = Trainer(tiny_qwen3(), config)
    other.load(tmp_path)
    again = other.update(TrainingBatch(2, told(random_samples(2), other)))
    assert torch.equal(weights_of(other), weights_of(trainer))
    for name, tensor in trainer.critic.tensors().items():
        assert torch.equal(other.critic.tensors()[name], tensor), name
    assert {**last, "seconds/train": 0} == {**again, "seconds/train": 0} and last["critic/loss"] > 0


@pytest.mark.extra_slow
def test_a_checkpoint_without_a_head_is_refused_and_one_with_it_serves_others(tmp_path):
    for name in ("plain", "critic"):
        (tmp_path / name).mkdir()
    Trainer(tiny_qwen3(), config_of()).save(tmp_path / "plain", None)
    trainer = Trainer(tiny_qwen3(), critic_config())
    with pytest.raises(UserError, match="no value head"):
        trainer.load(tmp_path / "plain")
    trainer.save(tmp_path / "critic", None)
    Trainer(tiny_qwen3(), config_of()).load(tmp_path / "critic")


def test_what_is_not_finite_or_fails_changes_nothing(monkeypatch):
    trainer = Trainer(tiny_qwen3(), critic_config())
    trainer.update(TrainingBatch(1, told(random_samples(), trainer)))
    samples = told(random_samples(), trainer)
    state = [tensor.clone() for tensor in trainer.critic.tensors().values()], weights_of(trainer)

    def unchanged():
        now = trainer.critic.tensors().values()
        return all(map(torch.equal, now, state[0])) and torch.equal(weights_of(trainer), state[1])

    came, samples[0].returns = samples[0].returns, np.full_like(samples[0].returns, np.inf)
    assert trainer.update(TrainingBatch(2, samples))["steps_skipped"] == 1 and unchanged()
    samples[0].returns = came
    advantages, samples[0].advantages = samples[0].advantages, samples[0].advantages * np.nan
    assert trainer.update(TrainingBatch(3, samples))["steps_skipped"] == 1 and unchanged()
    samples[0].advantages = advantages
    monkeypatch.setattr(trainer.optimizer, "step", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.update(TrainingBatch(4, samples))
    assert unchanged() and trainer.critic.optimizer.steps == 8
