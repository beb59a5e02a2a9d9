"""One training step: what it computes, and what it promises when something goes wrong."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from ajet.algorithm import assign_credit
from ajet.algorithm.loss_terms import estimate_kl
from ajet.algorithm.losses.contract import LossInputs
from ajet.algorithm.losses.kl_cov import KlCovLoss
from ajet.algorithm.weights import split_mini_batches
from ajet.backbone.local.trainer import Trainer
from ajet.schema.batch import TrainingBatch
from ajet.schema.episode import SampledSpan
from tests.support.local_fixtures import (
    config_of,
    episode_of,
    group_of,
    plain_logprobs,
    random_samples,
    sample_of,
    tiny_llama,
    tiny_qwen3,
    weights_of,
)  # fmt: skip

pytestmark = pytest.mark.slow


def gradient_of(trainer, samples, temperature=1.0):
    """The gradient of one step, by parameter name."""
    from ajet.backbone.local.losses import StepLoss

    loss = StepLoss(samples, trainer.tokens, 1.0, compare_engine=True)
    trainer.add_gradients(loss, temperature)
    weights = trainer.policy.weights
    flat = weights.gradients.clone()
    weights.drop_gradients()
    return {place.name: flat[place.start : place.stop].view(place.shape) for place in weights.places}, loss.tally


def test_gradient_is_that_of_the_formula():
    """Sum over trained tokens of weight * (-A log p), by the plain forward pass."""
    model, samples = tiny_qwen3(), random_samples()
    twin = copy.deepcopy(model)
    trainer = Trainer(model, config_of())
    found, tally = gradient_of(trainer, samples, 0.8)
    value = 0.0
    for sample in samples:
        advantage = torch.from_numpy(sample.advantages[sample.timeline.mask])
        (sample.weight * -advantage * plain_logprobs(twin, sample, 0.8)).sum().backward()
        value += float(sample.weight * -advantage.sum())
    assert tally.loss == pytest.approx(value, rel=1e-5), "the ratio is 1, so the loss is -A"
    for name, parameter in twin.named_parameters():
        assert (found[name] - parameter.grad).abs().max() <= 1e-5 * parameter.grad.abs().max() + 1e-6, name


@pytest.mark.parametrize("aggregation", ["token", "sequence", "sequence-sum"])
def test_splitting_a_timeline_leaves_loss_and_gradient_unchanged(aggregation):
    """An episode as one timeline of two replies, or as two timelines of one reply each; rows large or small."""
    ids = np.random.default_rng(5).integers(0, 97, 24).tolist()
    whole = replace(episode_of(1.0, (1,), uuid="a"), timelines=[sample_of(ids, [(8, 13), (18, 24)]).timeline])
    first, second = sample_of(ids[:13], [(8, 13)]).timeline, sample_of(ids, [(18, 24)]).timeline
    second.spans = (SampledSpan(1, 18, 24),)
    split = replace(whole, timelines=[first, second])
    results = []
    for episode, budget in ((whole, 4096), (split, 4096), (split, 8)):
        config = config_of(
            algorithm__loss_aggregation=aggregation, micro_batch_tokens=budget, data__max_response_length=64
        )
        other = episode_of(0.0, (4,), uuid="b")
        for one in (episode, other):
            one.untrained.clear()
        batch = assign_credit([group_of(copy.deepcopy(episode), other)], config)
        found, tally = gradient_of(Trainer(tiny_qwen3(), config), batch.samples)
        results.append((tally.loss, found))
    for loss, found in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-6)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, results[0][1][name], rtol=1e-4, atol=1e-6)


def test_kl_in_the_loss():
    """weight * (-A ratio + coefficient * k3), against a reference that differs from the policy."""
    samples = random_samples()
    config = config_of(use_kl_loss=True, kl_loss_coef=0.5, optim__lr=0.05)
    trainer = Trainer(tiny_qwen3(), config)
    trainer.update(TrainingBatch(1, samples))
    policy, start = trainer.logprobs(samples), Trainer(tiny_qwen3(), config_of()).logprobs(samples)
    reference = trainer.logprobs(samples, reference=True)
    np.testing.assert_allclose(np.concatenate(reference), np.concatenate(start), atol=1e-5)
    _, tally = gradient_of(trainer, samples)
    gaps = [p - r for p, r in zip(policy, reference, strict=True)]
    k3 = [np.where(s.timeline.mask, np.exp(-gap) - 1 + gap, 0) for s, gap in zip(samples, gaps, strict=True)]
    wanted = sum(
        s.weight * (0.5 * row.sum() - s.advantages[s.timeline.mask].sum()) for s, row in zip(samples, k3, strict=True)
    )
    assert tally.loss == pytest.approx(wanted, rel=1e-4)
    assert tally.kl == pytest.approx(sum(row.sum() for row in k3), rel=1e-3) and tally.kl > 0.01
    for sample, row in zip(samples, reference, strict=True):
        sample.reference = row
    assert gradient_of(trainer, samples)[1].loss == pytest.approx(wanted, rel=1e-4), "given with the samples"


def test_no_kl_term_costs_no_reference():
    trainer = Trainer(tiny_qwen3(), config_of())
    with pytest.raises(ValueError, match="reference"):
        trainer.logprobs(random_samples(), reference=True)


def test_importance_weights_and_mismatch():
    samples = random_samples(turns=1)
    trainer = Trainer(tiny_qwen3(), config_of(algorithm__is_cap=1.5))
    own = trainer.logprobs(samples)
    _, tally = gradient_of(trainer, samples)
    masks = [sample.timeline.mask for sample in samples]
    gaps = np.concatenate([(s.timeline.logprobs - o)[m] for s, o, m in zip(samples, own, masks, strict=True)])
    weights = np.minimum(np.exp(-gaps), 1.5)
    scale = np.concatenate([(s.weight * -s.advantages)[m] for s, m in zip(samples, masks, strict=True)])
    assert tally.loss == pytest.approx(float((weights * scale).sum()), rel=1e-4)
    means = tally.means()
    assert means["mismatch_kl"] == pytest.approx(gaps.mean(), rel=1e-4)
    assert means["logprob_gap_max"] == pytest.approx(np.abs(gaps).max(), rel=1e-4)
    assert means["is_capped_fraction"] == pytest.approx((weights == 1.5).mean())


def aged(samples, version):
    """Of every timeline the first half of the trained tokens was sampled by `version`, the rest by the one after."""
    for sample in samples:
        trained = np.flatnonzero(sample.timeline.mask)
        sample.timeline.versions[trained] = np.where(np.arange(trained.size) < trained.size // 2, version, version + 1)
    return samples


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.extra_slow), 2])
def test_stale_tokens_get_the_truncated_ratio_by_default(parts):
    """Where training is asynchronous, nothing else said: the update is that of weights that the advantages hold."""
    samples, plain = aged(random_samples(turns=1), 2), random_samples(turns=1)
    trainer = Trainer(tiny_qwen3(), config_of(mode="separate_async", mini_batch_num=parts))
    trainer.version = 3
    draw, weights = np.random.default_rng(0), []
    for sample, own in zip(samples, trainer.logprobs(samples), strict=True):
        gap = draw.normal(0, 1, own.size).astype(np.float32)
        sample.timeline.logprobs = own - gap
        weights.append(np.minimum(np.exp(gap), 2.0))
    metrics = trainer.update(TrainingBatch(1, samples))
    stale = np.concatenate([row[sample.timeline.versions == 2] for sample, row in zip(samples, weights, strict=True)])
    assert 0 < (stale == 2.0).mean() < 1
    trained = sum(sample.timeline.sampled for sample in samples)
    assert metrics["stale_fraction"] == stale.size / trained
    assert metrics["stale_is_weight_mean"] == pytest.approx(stale.mean(), rel=1e-5)
    assert metrics["stale_is_capped_fraction"] == pytest.approx((stale == 2.0).mean())
    for sample, row in zip(plain, weights, strict=True):
        sample.advantages = np.where(sample.timeline.mask, sample.advantages * row, 0).astype(np.float32)
    other = Trainer(tiny_qwen3(), config_of(mini_batch_num=parts))
    assert other.update(TrainingBatch(1, plain))["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    torch.testing.assert_close(weights_of(trainer), weights_of(other), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("parts", [1, 2])
def test_what_the_updated_version_is_said_to_have_sampled_is_compared_and_nothing_else(parts):
    samples = random_samples(turns=1)
    trainer = Trainer(tiny_qwen3(), config_of(mini_batch_num=parts))
    trainer.version = 3
    for at, (sample, own) in enumerate(zip(samples, trainer.logprobs(samples), strict=True)):
        sample.timeline.versions[sample.timeline.mask] = 3 if at else 2
        sample.timeline.logprobs = own - (0.25 if at else 5.0)  # the first one says itself that it is older
    trainer.update(TrainingBatch(1, samples))
    assert trainer.fresh_gap == pytest.approx(0.25, rel=1e-3)
    for sample in samples:  # of the others a part is of the version before
        sample.timeline.versions[np.flatnonzero(sample.timeline.mask)] = [3] + [4] * (sample.timeline.sampled - 1)
    trainer.update(TrainingBatch(2, samples))
    assert trainer.fresh_gap is None


def test_what_has_no_cap_keeps_its_bits():
    """Training in turns, and null where it is asynchronous; stale tokens are counted there, with a weight of 1."""
    found = []
    for config in (
        config_of(),
        config_of(algorithm__is_cap=None),
        config_of(mode="separate_async", algorithm__is_cap=None),
    ):
        trainer = Trainer(tiny_qwen3(), config)
        trainer.version = 3
        metrics = trainer.update(TrainingBatch(1, aged(random_samples(), 2)))
        assert (metrics["stale_is_weight_mean"], metrics["stale_is_capped_fraction"]) == (1.0, 0.0)
        found.append((weights_of(trainer), {**metrics, "seconds/train": 0}))
    assert all(torch.equal(weights, found[0][0]) and metrics == found[0][1] for weights, metrics in found)
    fresh = Trainer(tiny_qwen3(), config_of()).update(TrainingBatch(1, random_samples()))
    assert fresh["loss"] == found[0][1]["loss"] and not [name for name in fresh if name.startswith("stale")]


def test_mini_batches_are_whole_groups():
    samples = random_samples(groups=5, size=2)
    parts = split_mini_batches(samples, 2)
    assert sorted(sum(parts, [])) == list(range(10))
    assert [{samples[index].group for index in part} for part in parts] == [{0, 1}, {2, 3, 4}]
    assert [len(part) for part in split_mini_batches(samples[:4], 3)] == [1, 2, 1]
    assert split_mini_batches([], 3) == []


def test_several_mini_batches_clip_against_the_policy_before_the_first():
    samples = random_samples(groups=3)
    trainer = Trainer(tiny_qwen3(), config_of(mini_batch_num=3, optim__lr=0.05))
    metrics = trainer.update(TrainingBatch(1, samples))
    assert trainer.optimizer.steps == 3 and trainer.version == 1
    assert metrics["clip_fraction"] > 0
    single = Trainer(tiny_qwen3(), config_of(optim__lr=0.05))
    assert single.update(TrainingBatch(1, samples))["clip_fraction"] == 0


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.extra_slow), torch.bfloat16])
def test_the_same_batch_gives_the_same_bits(dtype):
    runs = []
    for _ in range(2):
        trainer = Trainer(tiny_qwen3(dtype=dtype), config_of(use_kl_loss=True, mini_batch_num=2, optim__lr=1e-3))
        metrics = [trainer.update(TrainingBatch(step, random_samples(step))) for step in (1, 2)]
        for row in metrics:
            row.pop("seconds/train")
        runs.append((weights_of(trainer), trainer.optimizer.first, trainer.optimizer.second, metrics))
    assert all(torch.equal(a, b) for a, b in zip(runs[0][:3], runs[1][:3], strict=True))
    assert runs[0][3] == runs[1][3]


def test_bfloat16_trains_like_float32():
    """In one row or in many; over many rows gradients add up in float32."""
    samples = random_samples()
    gradients = []
    for dtype, budget in ((torch.float32, 4096), (torch.bfloat16, 4096), (torch.bfloat16, 16)):
        found, _ = gradient_of(Trainer(tiny_qwen3(dtype=dtype), config_of(micro_batch_tokens=budget)), samples)
        gradients.append(torch.cat([row.reshape(-1) for row in found.values()]))
    assert [gradient.dtype for gradient in gradients[1:]] == [torch.bfloat16, torch.float32]
    for gradient in gradients[1:]:
        assert torch.cosine_similarity(gradients[0], gradient.float(), dim=0) > 0.995


@pytest.mark.parametrize("parts", [1, 3])
def test_an_error_leaves_everything_as_it_was(parts, monkeypatch):
    trainer = Trainer(tiny_qwen3(dtype=torch.bfloat16), config_of(mini_batch_num=parts, optim__lr=0.05))
    trainer.update(TrainingBatch(1, random_samples(groups=3)))
    before = (weights_of(trainer), trainer.optimizer.first.clone(), trainer.optimizer.second.clone())
    steps, version = trainer.optimizer.steps, trainer.version
    plain, calls = trainer.add_gradients, []

    def failing(*args, **more):
        calls.append(args)
        if len(calls) == parts:
            raise MemoryError("no more")
        return plain(*args, **more)

    monkeypatch.setattr(trainer, "add_gradients", failing)
    with pytest.raises(MemoryError):
        trainer.update(TrainingBatch(2, random_samples(7, groups=3)))
    after = (weights_of(trainer), trainer.optimizer.first, trainer.optimizer.second)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (trainer.optimizer.steps, trainer.version) == (steps, version)
    assert trainer.policy.weights.gradients is None


@pytest.mark.parametrize(("parts", "torn"), [(1, True), (2, False)])
def test_what_cuts_an_optimizer_step_short_is_undone_or_known(parts, torn, monkeypatch):
    trainer = Trainer(tiny_qwen3(), config_of(mini_batch_num=parts, optim__lr=0.05))
    trainer.update(TrainingBatch(1, random_samples(groups=2)))
    before, plain = weights_of(trainer), trainer.optimizer.move_slice
    assert not trainer.has_partial_update

    def cut_short(*args):
        plain(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer.optimizer, "move_slice", cut_short)
        trainer.update(TrainingBatch(2, random_samples(7, groups=2)))
    assert trainer.has_partial_update == torn and torch.equal(weights_of(trainer), before) != torn


def test_a_step_that_is_not_finite_is_skipped_and_counted():
    trainer = Trainer(tiny_qwen3(), config_of())
    before = weights_of(trainer)
    samples = random_samples()
    samples[2].advantages[samples[2].timeline.mask] = np.nan
    metrics = trainer.update(TrainingBatch(1, samples))
    assert metrics["steps_skipped"] == 1 and trainer.version == 1
    assert torch.equal(weights_of(trainer), before) and trainer.optimizer.steps == 0
    assert trainer.update(TrainingBatch(2, random_samples()))["steps_skipped"] == 0
    assert not torch.equal(weights_of(trainer), before)


def test_an_empty_batch():
    trainer = Trainer(tiny_qwen3(), config_of())
    before = weights_of(trainer)
    assert trainer.update(TrainingBatch(1, []))["computed_tokens"] == 0
    assert torch.equal(weights_of(trainer), before)


@pytest.mark.parametrize("rank", [0, 4])
def test_the_engine_sees_new_weights_without_a_copy(rank):
    from ajet.engine.transformers.attention import make_shared_copy

    trainer = Trainer(tiny_qwen3(dtype=torch.bfloat16), config_of(optim__lr=0.05, lora__rank=rank))
    engines = make_shared_copy(trainer.policy.model)
    theirs = {name: p.data_ptr() for name, p in engines.named_parameters()}
    assert theirs == {name: p.data_ptr() for name, p in trainer.policy.model.named_parameters()}
    before = {name: p.detach().clone() for name, p in engines.named_parameters()}
    trainer.update(TrainingBatch(1, random_samples()))
    moved = {name for name, p in engines.named_parameters() if not torch.equal(p, before[name])}
    assert moved and (rank == 0) == ("model.embed_tokens.weight" in moved)
    assert trainer.policy.forward.packed and trainer.logprobs(random_samples()), "the trainer's attention is its own"


def test_gradient_checkpointing_changes_no_number():
    samples = random_samples()
    plain, _ = gradient_of(Trainer(tiny_qwen3(), config_of()), samples)
    saving, _ = gradient_of(Trainer(tiny_qwen3(), config_of(gradient_checkpointing=True)), samples)
    assert all(torch.equal(plain[name], saving[name]) for name in plain)


@pytest.mark.parametrize("rank", [0, 4])
def test_what_an_engine_with_its_own_weights_gets_is_the_policy(rank):
    trainer = Trainer(tiny_llama(), config_of(lora__rank=rank, optim__lr=0.05))
    trainer.update(TrainingBatch(1, random_samples()))
    plain = tiny_llama()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    handed = dict(trainer.policy.changed())
    assert set(handed) <= set(before) and any(not torch.equal(handed[name], before[name]) for name in handed)
    plain.load_state_dict({**before, **handed})
    sample = random_samples()[0]
    (found,) = trainer.logprobs([sample])
    expected = plain_logprobs(plain, sample)
    assert np.abs(found[sample.timeline.mask] - expected.detach().numpy()).max() < 1e-4


def test_the_learning_rate_counts_steps_and_not_updates():
    """Steps 2 and 3 had nothing to learn from: step 4 of 4 has the rate that the schedule gives it."""
    config = config_of(optim__lr=1e-3, optim__lr_schedule="linear", total_training_steps=4)
    trainer = Trainer(tiny_qwen3(), config)
    rates = [trainer.update(TrainingBatch(step, random_samples(step)))["lr"] for step in (1, 4)]
    assert rates == pytest.approx([1e-3, 0.25e-3])


def test_the_heads_gradient_is_added_up_in_float32(monkeypatch):
    """One row in bfloat16, its targets in one chunk or in many: no more is lost by many."""
    from ajet.backbone.local import packed_forward

    draw = np.random.default_rng(0)
    ids = draw.integers(0, 97, 600).tolist()
    sample = [sample_of(ids, [(8, 600)])]
    config = config_of()
    config.rollout.temperature = 1.0
    exact, _ = gradient_of(Trainer(tiny_qwen3(tie_word_embeddings=False), config), sample)
    errors = []
    for chunk in (1 << 30, 4 * 97 * 2):
        monkeypatch.setattr(packed_forward, "CHUNK_BYTES", chunk)
        trainer = Trainer(tiny_qwen3(tie_word_embeddings=False, dtype=torch.bfloat16), config)
        found, _ = gradient_of(trainer, sample)
        gap = found["lm_head.weight"].float() - exact["lm_head.weight"]
        errors.append(float(gap.norm() / exact["lm_head.weight"].norm()))
    assert errors[1] < 1.1 * errors[0] + 1e-3, errors


@pytest.mark.parametrize("name", ["entropy", "kl", "mismatch_kl", "logprob_gap_max", "is_capped_fraction"])
def test_metrics_are_means_over_tokens(name):
    """Weights that an update leaves as they are: any number of mini-batches gives the same means."""

    def metrics_of(parts):
        settings = config_of(use_kl_loss=True, mini_batch_num=parts, optim__lr=1e-30, algorithm__is_cap=1.2)
        samples = random_samples(size=4)
        for index, sample in enumerate(samples):  # long and short ones, which mini-batches mix unequally
            sample.timeline.mask[: index * 2] = False
        return Trainer(tiny_qwen3(), settings).update(TrainingBatch(1, samples))

    whole, parts = metrics_of(1), metrics_of(3)
    assert whole[name] == pytest.approx(parts[name], rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("apart", [3.6e-7, -3.6e-7])
def test_kl_cov_gives_rounding_no_gradient(apart):
    """The first optimizer step: old log-probabilities of another pass differ from the present ones by rounding."""
    old = torch.linspace(-3, -0.1, 8)
    logprobs = (old + apart).requires_grad_()
    tokens = LossInputs(logprobs, old, torch.linspace(-1, 1, 8), chosen=torch.ones(8, dtype=torch.bool))
    loss = KlCovLoss(config_of(algorithm__policy_loss="kl_cov").trainer_common.algorithm)
    (gradient,) = torch.autograd.grad(loss(tokens)[0].sum(), logprobs)
    assert float((gradient + tokens.advantages).abs().max()) < 1e-3


def test_kl_estimator_abs_gives_rounding_no_gradient():
    reference = torch.linspace(-3, -0.1, 8)
    logprobs = (reference + 3.6e-7).requires_grad_()
    (gradient,) = torch.autograd.grad(estimate_kl(logprobs, reference, "abs").sum(), logprobs)
    assert float(gradient.abs().max()) < 1e-3
