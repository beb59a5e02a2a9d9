"""The losses that `policy_loss` names, importance weights and bounds on stale tokens: formulas by hand, finite
differences, and what they promise whatever the numbers."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from loguru import logger

from ajet.algorithm import open_algorithm
from ajet.algorithm.importance import ImportanceCorrection, StaleBounds
from ajet.algorithm.loss_terms import average_by_reply, number_replies, sum_by_reply
from ajet.algorithm.token_loss import ReplyStatistics, TokenLoss
from ajet.backbone.decoupled.closed_groups import is_fresh
from ajet.backbone.local.losses import StepLoss
from ajet.backbone.local.trainer import Trainer
from ajet.config import AjetConfig
from ajet.config.plugins import find_parts
from ajet.schema.batch import TrainingBatch
from ajet.schema.episode import Group
from ajet.schema.errors import ConfigError, UserError
from tests.algorithm.test_loss_terms import ADVANTAGES, LOGPROBS, OLD, clipped_by_hand, huber, numeric_gradient
from tests.support.local_fixtures import config_of, episode_of, random_samples, tiny_qwen3, weights_of

ENGINE = [-0.3, -1.2, -2.0, -0.9, -1.1, -1.0, -0.7, -1.9]
REPLIES = [0, 0, 0, 1, 1, 2, 2, 2]
LOW, HIGH, DUAL = 0.3, 0.4, 20.0


def of_reply(values, index, mean=True):
    own = [value for value, reply in zip(values, REPLIES, strict=True) if reply == REPLIES[index]]
    return sum(own) / len(own) if mean else sum(own)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def clipped(x, at, index, old):
    return clipped_by_hand(x, old[index], ADVANTAGES[index], LOW, HIGH, None)


def gspo(x, at, index, old):
    """`at`: the point at which the derivative is taken. The reply's ratio is a constant there, but for this token."""
    gaps = [a - o for a, o in zip(at, old, strict=True)]
    return clipped_by_hand(of_reply(gaps, index) + x - at[index], 0.0, ADVANTAGES[index], LOW, HIGH, None)


def cispo(x, at, index, old):
    return -min(max(math.exp(at[index] - old[index]), 1 - LOW), 1 + HIGH) * ADVANTAGES[index] * x


def sapo(x, at, index, old):
    tau = 2.0 if ADVANTAGES[index] > 0 else 3.0
    return -ADVANTAGES[index] * 4 / tau * sigmoid(tau * (math.exp(x - old[index]) - 1))


def minirl(x, at, index, old):
    return -math.exp(at[index] - old[index]) * ADVANTAGES[index] * x


def sft(x, at, index, old):
    return -ADVANTAGES[index] * x


CHOSEN = [False, True, False, False, True, False, True, False]


def clip_cov(x, at, index, old):
    return 0.0 if CHOSEN[index] else clipped(x, at, index, old)


def kl_cov(x, at, index, old):
    moved = x - old[index]
    return -ADVANTAGES[index] * math.exp(moved) + (0.5 * huber(moved) if CHOSEN[index] else 0.0)


def dppo(divergence):
    """Of two probabilities: the present one at `at`, and the old one. `DUAL` bounds the ratio."""

    def loss(x, at, index, old):
        p, q, advantage = math.exp(at[index]), math.exp(old[index]), ADVANTAGES[index]
        bound = HIGH if advantage > 0 else LOW
        if (p - q) * advantage > 0 and divergence(p, q) > bound:
            return 0.0
        return -min(p / q, DUAL) * advantage * x

    return loss


def variation(p, q):
    return abs(p - q)


def binary_kl(p, q):
    return q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))


BY_HAND = {
    "dppo_tv": dppo(variation),
    "dppo_kl": dppo(binary_kl),
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "clipped": clipped,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "minirl": minirl,
    "sft": sft,
}


BETA = {"algorithm__covariance__beta": 0.5}


def loss_of(**changes):
    bounds = {"algorithm__clip_low": LOW, "algorithm__clip_high": HIGH}
    config = config_of(**{**bounds, "algorithm__tau_positive": 2.0, "algorithm__tau_negative": 3.0, **BETA, **changes})
    return TokenLoss.from_settings(config.trainer_common, open_algorithm(config))


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def terms_of(loss, at=LOGPROBS, old=OLD, ages=None):
    logprobs = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    before, advantages, engine = tensors(old, ADVANTAGES, ENGINE)
    told = loss.compute_reply_statistics(logprobs, before, engine, torch.tensor(REPLIES)) if loss.over_replies else None
    if loss.policy.over_batch:
        told = (told or ReplyStatistics())._replace(chosen=torch.tensor(CHOSEN))
    ages = torch.tensor(ages) if ages is not None else None
    return logprobs, loss(logprobs, before, advantages, engine_T=engine, replies=told, ages_T=ages)


@pytest.mark.parametrize("refers", ["proximal", "behaviour"])
@pytest.mark.parametrize("name", [*find_parts("loss")])
def test_value_and_gradient_are_those_of_the_formula(name, refers):
    dual = DUAL if name.startswith("dppo") else None
    loss = loss_of(algorithm__policy_loss=name, algorithm__old_policy=refers, algorithm__clip_dual=dual)
    old = OLD if refers == "proximal" else ENGINE
    logprobs, terms = terms_of(pickle.loads(pickle.dumps(loss)))

    def by_hand(values):
        return sum(BY_HAND[name](x, LOGPROBS, index, old) for index, x in enumerate(values))

    assert terms.loss.sum().item() == pytest.approx(by_hand(LOGPROBS), rel=1e-12)
    terms.loss.sum().backward()
    numeric = numeric_gradient(by_hand, LOGPROBS)
    np.testing.assert_allclose(logprobs.grad.numpy(), numeric, atol=1e-7)
    if name in ("clipped", "gspo"):
        np.testing.assert_array_equal(terms.clipped.numpy(), np.abs(numeric) < 1e-9)
        assert terms.clipped.any() and not terms.clipped.all()


@pytest.mark.parametrize("name", [name for name in find_parts("loss") if name != "clip_cov"])
def test_where_the_policies_are_equal_the_gradient_is_that_of_reinforce(name):
    logprobs, terms = terms_of(loss_of(algorithm__policy_loss=name), old=LOGPROBS)
    terms.loss.sum().backward()
    np.testing.assert_allclose(logprobs.grad.numpy(), [-a for a in ADVANTAGES], rtol=1e-12)
    assert not terms.clipped.any()


@pytest.mark.parametrize(
    ("name", "logprob", "old", "advantage", "outside"),
    [
        ("dppo_tv", 0.5, 0.05, 1.0, True),
        ("dppo_tv", 0.05, 0.005, 1.0, False),  # a rare token: ten times the probability, and yet near
        ("dppo_tv", 0.5, 0.05, -1.0, False),  # moves back when trained
        ("dppo_tv", 0.1, 0.9, -1.0, True),
        ("dppo_kl", 0.5, 0.05, 1.0, True),
        ("dppo_kl", 0.05, 0.005, 1.0, False),
        ("dppo_kl", 0.1, 0.9, 1.0, False),
        ("dppo_kl", 0.1, 0.9, -1.0, True),
    ],
)
def test_dppo_bounds_the_movement_of_probability(name, logprob, old, advantage, outside):
    loss = loss_of(algorithm__policy_loss=name)
    rows = tensors([math.log(logprob)], [math.log(old)], [advantage])
    terms = loss(*rows)
    assert terms.clipped.tolist() == [outside] and (terms.loss.item() == 0) == outside


def test_the_reply_of_gspo_has_the_gradient_of_the_sequences_loss():
    """With one advantage a reply: the paper's equation 5, the mean over its tokens."""
    advantages = [1.0, 1.0, 1.0, -1.0, -1.0, 0.5, 0.5, 0.5]
    loss = loss_of(algorithm__policy_loss="gspo", algorithm__clip_low=0.99, algorithm__clip_high=99.0)
    logprobs = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
    old, given, engine = tensors(OLD, advantages, ENGINE)
    told = loss.compute_reply_statistics(logprobs, old, engine, torch.tensor(REPLIES))
    loss(logprobs, old, given, replies=told).loss.sum().backward()

    def sequences(values):
        """Each reply counts its tokens times."""
        gaps = [x - o for x, o in zip(values, OLD, strict=True)]
        return sum(-a * math.exp(of_reply(gaps, index)) for index, a in enumerate(advantages))

    np.testing.assert_allclose(logprobs.grad.numpy(), numeric_gradient(sequences, LOGPROBS), atol=1e-7)


MODES = [f"{level}_{then}" for level in ("token", "sequence", "geometric") for then in ("truncate", "mask")]


@pytest.mark.parametrize("mode", MODES)
def test_importance_weights(mode):
    cap, floor = {"token": 1.4, "sequence": 2.0, "geometric": 1.3}[mode.split("_")[0]], 0.4
    changes = {"algorithm__is_cap": cap, "algorithm__is_mode": mode, "algorithm__is_floor": floor}
    plain, (_, terms) = terms_of(loss_of())[1], terms_of(loss_of(**changes))
    gaps = [o - e for o, e in zip(OLD, ENGINE, strict=True)]
    level, then = mode.split("_")
    wanted = []
    for index, gap in enumerate(gaps):
        ratio = math.exp(gap if level == "token" else of_reply(gaps, index, mean=level == "geometric"))
        wanted.append(min(ratio, cap) if then == "truncate" else ratio if floor <= ratio <= cap else 0.0)
    np.testing.assert_allclose(terms.weights.numpy(), wanted, rtol=1e-12)
    np.testing.assert_allclose(terms.loss.detach().numpy(), plain.loss.detach().numpy() * wanted, rtol=1e-12)
    assert not terms.weights.requires_grad, "a constant in the gradient"
    at_bound = [w == (cap if then == "truncate" else 0.0) for w in wanted]
    assert terms.capped.tolist() == at_bound and 0 < sum(at_bound) < len(at_bound)


@pytest.mark.parametrize("mode", MODES)
def test_equal_policies_have_the_weight_1_and_none_is_above_the_cap(mode):
    correction, draw = ImportanceCorrection(2.0, mode, 0.5), np.random.default_rng(1)
    own, engine = (torch.from_numpy(draw.normal(-2, 1, 60)) for _ in "ab")
    replies = torch.from_numpy(np.sort(draw.integers(0, 9, 60)))
    assert torch.equal(correction.weights(correction.gaps(own, own, replies)), torch.ones_like(own))
    found = correction.weights(correction.gaps(own, engine, replies))
    assert float(found.max()) <= 2.0 and float(found.min()) >= 0.0


def test_decoupled_ppo_is_the_clipped_ratio_to_the_proximal_policy_times_the_proximals_to_the_behaviours():
    """Equation 12 of arXiv 2110.00641, here with the weight truncated."""
    _, terms = terms_of(loss_of(algorithm__is_cap=2.0))
    for index, found in enumerate(terms.loss.tolist()):
        weight = min(math.exp(OLD[index] - ENGINE[index]), 2.0)
        wanted = weight * clipped_by_hand(LOGPROBS[index], OLD[index], ADVANTAGES[index], LOW, HIGH, None)
        assert found == pytest.approx(wanted, rel=1e-12)


def test_what_counts_twice_is_refused():
    for settings in (
        {"old_policy": "behaviour", "is_cap": 2.0},
        {"adv_estimator": "tests.support.own_algorithms->AgainstTheMedian"},
    ):
        tree = {"trainer_common": {"algorithm": {"policy_loss": "sapo", **settings}}}
        with pytest.raises(UserError):
            open_algorithm(AjetConfig.model_validate(tree))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"is_mode": "token_mask", "is_floor": 1.5}, "is_floor"),
        ({"is_mode": "geometric_mask", "is_cap": 0.5}, "is_cap"),
        ({"policy_loss": "clip_cov", "covariance": {"low": 5.0}}, "covariance.low"),
    ],
    ids=str,
)
def test_bounds_that_hold_no_token_are_refused(settings, key):
    with pytest.raises(UserError) as refused:
        open_algorithm(AjetConfig.model_validate({"backbone": "local", "trainer_common": {"algorithm": settings}}))
    assert refused.value.where == f"ajet.trainer_common.algorithm.{key}"
    kept = {"is_mode": "token_mask", "is_floor": 1.0, "is_cap": 1.0}, {"is_cap": 0.5}, {"is_floor": 1.5}
    for each in kept:  # what is held at a cap is trained with it
        open_algorithm(AjetConfig.model_validate({"backbone": "local", "trainer_common": {"algorithm": each}}))
    open_algorithm(AjetConfig.model_validate({"backbone": "debug", "trainer_common": {"algorithm": settings}}))


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}], ids=str)
def test_a_ratio_to_what_a_part_of_the_distribution_says_is_refused(cut):
    behaviour = {"trainer_common": {"algorithm": {"old_policy": "behaviour"}}}
    with pytest.raises(UserError, match="truncated distribution") as refusal:
        open_algorithm(AjetConfig.model_validate({**behaviour, "rollout": cut}))
    assert "old_policy" in refusal.value.where and "proximal" in refusal.value.expected
    open_algorithm(AjetConfig.model_validate(behaviour))
    open_algorithm(AjetConfig.model_validate({"rollout": cut}))


@pytest.mark.parametrize(
    ("strict", "decay", "ages", "width"),
    [
        (False, None, [0] * 8, [4.0] * 8),
        (True, 0.5, [3] * 8, [1.0] * 8),
        (False, 0.5, [0, 0, 1, 1, 2, 2, 9, 9], [4 * math.exp(-0.5 * age) for age in (0, 0, 1, 1, 2, 2, 9, 9)]),
    ],
)
def test_bounds_of_stale_tokens(strict, decay, ages, width):
    """AgentRL's example: clip_low 0.2, clip_high 0.3, ratio 4 give [0.2, 2.2], strict [0.8, 1.3]."""
    bounds = StaleBounds(0.2, 0.3, 4.0, strict, decay)
    logratio, advantages = tensors([a - o for a, o in zip(LOGPROBS, OLD, strict=True)], ADVANTAGES)
    found = bounds.find_outside(logratio, advantages, torch.tensor(ages))
    wanted = [
        (a > 0 and math.exp(x - o) > 1 + 0.3 * w) or (a < 0 and math.exp(x - o) < 1 - 0.2 * w)
        for x, o, a, w in zip(LOGPROBS, OLD, ADVANTAGES, width, strict=True)
    ]
    assert found.tolist() == wanted
    assert not bounds.find_outside(torch.zeros(8), advantages, torch.tensor(ages)).any(), "equal policies lose no token"


@pytest.mark.parametrize("name", ["minirl", "gspo"])
def test_a_token_outside_has_no_loss_and_no_gradient(name):
    changes = {"algorithm__policy_loss": name, "algorithm__importance_weight_cap_ratio": 1.0}
    logprobs, terms = terms_of(loss_of(**changes, algorithm__out_of_date_decay=0.1), ages=[0, 1, 2, 3, 4, 5, 6, 7])
    terms.loss.sum().backward()
    out = (terms.loss == 0) & (logprobs.grad == 0)
    assert out.any() and not out.all() and torch.equal(out, out & terms.clipped)


@pytest.mark.parametrize("given", [{"strict_in_bound": True}, {"out_of_date_decay": 0.1}])
def test_what_bears_on_bounds_that_are_not_there_is_refused(given):
    changes = {f"algorithm__{name}": value for name, value in given.items()}
    with pytest.raises(ConfigError, match="without bounds(.|\n)*importance_weight_cap_ratio: a number") as refused:
        open_algorithm(config_of(**changes))
    assert f"algorithm.{next(iter(given))}" in str(refused.value)
    open_algorithm(config_of(**changes, algorithm__importance_weight_cap_ratio=4.0))


def test_replies_are_the_runs_of_trained_tokens():
    mask = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 1, 0, 0, 0, 1]], dtype=torch.bool)
    found = number_replies(mask)[mask]
    assert found.tolist() == [1, 1, 2, 2, 3, 3, 4], "a row begins anew"
    values = torch.tensor([1.0, 2, 3, 4, 5, 6, 7])
    assert sum_by_reply(values, found).tolist() == [3, 3, 7, 7, 11, 11, 7]
    assert average_by_reply(values, found).tolist() == [1.5, 1.5, 3.5, 3.5, 5.5, 5.5, 7]


def test_what_a_queue_asks_of_a_group():
    trainer = config_of(max_staleness=4).trainer_common
    episodes = [episode_of(1.0, uuid=name) for name in "ab"]
    group = Group(episodes[0].task, 0, episodes)
    assert is_fresh(group, 2, trainer) and not is_fresh(group, 5, trainer)
    assert is_fresh(group, 5, config_of(max_staleness=None).trainer_common)
    assert is_fresh(Group(episodes[0].task, 0, []), 5, trainer), "nothing of it is trained"


@pytest.mark.parametrize(
    "mode, name",
    [("geometric_truncate", "gspo"), pytest.param("sequence_mask", "cispo", marks=pytest.mark.extra_slow)],
)
def test_the_trainer_has_the_numbers_of_whole_replies_however_they_are_cut_into_passes(mode, name):
    """By hand where the policy has not moved yet; the same in passes of few tokens, and after an optimizer step."""
    changes = {"algorithm__policy_loss": name, "algorithm__is_cap": 1.1, "algorithm__is_mode": mode}
    found = []
    for tokens in (4096, 24):
        config = config_of(**changes, algorithm__clip_high=0.01, mini_batch_num=2, micro_batch_tokens=tokens)
        config.trainer_common.optim.lr = 0.01
        trainer, samples = Trainer(tiny_qwen3(), config), random_samples(size=2)
        own = trainer.logprobs(samples)
        for sample, row in zip(samples, own, strict=True):
            drawn = np.random.default_rng(sample.timeline.ids.size).normal(0, 0.2, row.size)
            sample.timeline.logprobs = (row + drawn).astype(np.float32)
        loss = StepLoss(samples[:2], trainer.tokens, 1.0, compare_engine=True, old=own[:2])
        trainer.add_gradients(loss, 1.0)
        trainer.policy.weights.drop_gradients()
        assert loss.tally.loss == pytest.approx(
            sum(at_first(*each, mode) for each in zip(samples[:2], own[:2], strict=True)), rel=1e-4
        )
        metrics = trainer.update(TrainingBatch(1, samples))
        found.append((metrics["loss"], metrics["clip_fraction"], weights_of(trainer)))
    assert found[0][:2] == pytest.approx(found[1][:2], rel=1e-3)
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-3, atol=3e-4)


def at_first(sample, own, mode):
    """The ratio is 1: GSPO's loss is -w A, CISPO's -w A log p."""
    total = 0.0
    for span in sample.timeline.spans:
        at = slice(span.start, span.stop)
        gaps = (own - sample.timeline.logprobs)[at].astype(np.float64)
        ratio = math.exp(gaps.mean() if mode.startswith("geometric") else gaps.sum())
        weight = min(ratio, 1.1) if mode.endswith("truncate") else ratio * (ratio <= 1.1)
        each = -sample.advantages[at] * (1 if mode.startswith("geometric") else own[at])
        total += sample.weight * weight * float(each.sum())
    return total


@pytest.mark.slow
def test_a_mismatch_tightens_the_bound_and_is_said():
    """By the part that the gap is above the alarm; the next update has it anew."""
    samples, lines = random_samples(turns=1), []
    for sample in samples:
        sample.timeline.logprobs = sample.timeline.logprobs - 4
    trainer = Trainer(tiny_qwen3(), config_of(algorithm__is_cap=3.0))
    sink = logger.add(lambda message: lines.append(str(message)), format="{message}")
    quiet = trainer.update(TrainingBatch(1, samples), gap=0.1, alarm=0.1)
    loud = trainer.update(TrainingBatch(2, samples), gap=0.4, alarm=0.1)
    logger.remove(sink)
    assert "is_tightened_cap" not in quiet and trainer.tokens.is_cap == 3.0
    assert (loud["is_tightened_gap"], loud["is_tightened_cap"]) == (0.4, pytest.approx(1.5))
    assert loud["is_capped_fraction"] > quiet["is_capped_fraction"]
    [line] = [line for line in lines if "nats per token" in line]
    assert "0.4 nats per token" in line and "more than 0.1" in line and "to 1.5" in line
    assert ImportanceCorrection(3.0).tighten(math.nan, 0.1).cap == 1.0
    for gap, alarm in ((0.1, 0.1), (None, 0.1), (9.0, None)):
        assert ImportanceCorrection(3.0).tighten(gap, alarm).cap == 3.0


def test_what_auto_is_of_the_alarm():
    for canary, alarm, wanted in (("auto", "auto", 0.1), (0.5, "auto", 0.25), (None, "auto", None), (None, 0.3, 0.3)):
        made = config_of(canary=canary, algorithm__mismatch_alarm=alarm).trainer_common
        assert made.mismatch_alarm(rounded=True) == wanted
