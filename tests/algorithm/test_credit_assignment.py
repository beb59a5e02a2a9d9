"""Advantages against the formulas of the papers, written out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.contract import count_sampled_tokens
from ajet.algorithm.recorded_models import NotRecordedError, make_recorded_reference
from ajet.config import Experiment
from ajet.schema.episode import Outcome, Verdict
from ajet.schema.errors import UserError
from ajet.schema.process_reward import ProcessReward, ReplySpan
from tests.support.local_fixtures import config_of, episode_of, group_of


def algorithm(name, **changes):
    return open_algorithm(config_of(algorithm__adv_estimator=name, **changes))


def test_grpo_by_hand():
    rewards = [1.0, 0.0, 0.0, 1.0, 0.5]
    mean = sum(rewards) / 5
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 4)
    expected = [(r - mean) / (std + 1e-6) for r in rewards]
    np.testing.assert_allclose(algorithm("grpo").of_group(np.array(rewards)), expected, rtol=1e-12)


def test_dr_grpo_does_not_divide():
    rewards = [3.0, 0.0, 0.0]
    found = algorithm("grpo", algorithm__norm_adv_by_std=False).of_group(np.array(rewards))
    np.testing.assert_allclose(found, [2.0, -1.0, -1.0])


def test_rloo_by_hand():
    rewards = [1.0, 0.0, 0.25, 2.0]
    expected = [r - sum(o for j, o in enumerate(rewards) if j != i) / 3 for i, r in enumerate(rewards)]
    np.testing.assert_allclose(algorithm("rloo").of_group(np.array(rewards)), expected, rtol=1e-12)


def test_maxrl_by_hand():
    found = algorithm("maxrl").of_group(np.array([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(found, [3.0, -1.0, -1.0, -1.0], rtol=1e-12)
    found = algorithm("maxrl").of_group(np.array([1.0, 0.25, -1.0]))
    np.testing.assert_allclose(found, [(r - 0.25 / 3) / 0.75 for r in (1.0, 0.25, -1.0)], rtol=1e-12)


def test_maxrl_is_the_gradient_of_the_truncated_likelihood():
    """Over all outcomes of k attempts with success rate p: the mean of A times the score is the derivative of
    the sum of -(1 - p)^n / n over n up to k, by the logit of p."""
    k, p = 4, 0.2
    found = 0.0
    for hits in range(k + 1):
        rewards = np.array([1.0] * hits + [0.0] * (k - hits))
        scores = np.where(rewards == 1, 1 - p, -p)
        chance = math.comb(k, hits) * p**hits * (1 - p) ** (k - hits)
        found += chance * float((algorithm("maxrl").of_group(rewards) * scores).mean())

    def objective(logit):
        return -sum((1 - 1 / (1 + math.exp(-logit))) ** n / n for n in range(1, k))

    at = math.log(p / (1 - p))
    assert found == pytest.approx((objective(at + 1e-5) - objective(at - 1e-5)) / 2e-5, rel=1e-6)


def game(first, second, uuid):
    """An episode of two players with one reply each."""
    episode = episode_of(0.0, (2, 3), uuid=uuid)
    process = tuple(
        ProcessReward(reward=reward, agent=name, tokens=(ReplySpan(call, 0, 9),))
        for call, (name, reward) in enumerate((("first", first), ("second", second)))
    )
    return replace(episode, verdict=Verdict(0.0, process=process))


def test_rae_compares_each_player_with_itself():
    """The first player wins three of four games: a win is worth little to it, much to the second."""
    games = [game(first, -first, str(at)) for at, first in enumerate([1.0, 1.0, 1.0, -1.0])]
    groups = [group_of(each) for each in games]
    batch = assign_credit(groups, config_of(algorithm__adv_estimator="rae"))
    first = [r - (2.0 - r) / 3 for r in (1.0, 1.0, 1.0, -1.0)]
    rows = [sample.advantages[sample.timeline.mask] for sample in batch.samples]
    for at, expected in enumerate(first):
        np.testing.assert_allclose(rows[2 * at], [expected] * 2, rtol=1e-6)
        np.testing.assert_allclose(rows[2 * at + 1], [-expected] * 3, rtol=1e-6)
    assert not assign_credit(groups, config_of(algorithm__adv_estimator="grpo")).samples


def test_rae_compares_rewards_of_attempts_over_the_batch():
    groups = [group_of(episode_of(reward, uuid=str(at))) for at, reward in enumerate([1.0, 0.0, 0.0])]
    batch = assign_credit(groups, config_of(algorithm__adv_estimator="rae"))
    assert [batch.outcomes[str(at)].advantage for at in range(3)] == [1.0, -0.5, -0.5]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "maxrl"])
def test_equal_rewards_are_exactly_zero(estimator):
    assert not algorithm(estimator).of_group(np.full(3, 0.1)).any()
    assert not algorithm(estimator).of_group(np.array([0.7])).any()


def test_reinforce_plus_plus_by_hand():
    rewards, penalties = [1.0, 0.0, 0.0], [[0.1, 0.2], [0.0], [0.3, 0.0, 0.1]]
    returns = [[1 - 0.3, 1 - 0.2], [0.0], [-0.4, -0.1, -0.1]]
    mean = sum(sum(row) / len(row) for row in returns) / 3
    variance = sum(sum((x - mean) ** 2 for x in row) / len(row) for row in returns) / 2
    expected = [[(x - mean) / (math.sqrt(variance) + 1e-6) for x in row] for row in returns]
    rows = [np.array(row) for row in penalties]
    found = algorithm("reinforce_plus_plus").advantages(np.array(rewards), rows, [0, 0, 0])
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-9)


def test_reinforce_plus_plus_normalises_over_all_groups():
    groups = [group_of(episode_of(1.0, uuid="a"), episode_of(1.0, uuid="b")), group_of(episode_of(0.0, uuid="c"))]
    batch = assign_credit(groups, config_of(algorithm__adv_estimator="reinforce_plus_plus"))
    assert [sample.episode for sample in batch.samples] == ["a", "b", "c"]
    assert batch.outcomes["a"].advantage == pytest.approx(1 / math.sqrt(3), rel=1e-4)
    assert batch.outcomes["c"].advantage == pytest.approx(-2 / math.sqrt(3), rel=1e-4)


def test_baseline_is_over_the_scored_episodes():
    failed, unscored = episode_of(None, uuid="f", status="failed"), episode_of(None, (2,), uuid="n")
    group = group_of(episode_of(1.0, (5, 2), uuid="a"), failed, episode_of(0.0, (1,), uuid="b"), unscored)
    batch = assign_credit([group], config_of(algorithm__norm_adv_by_std=False))
    assert [batch.outcomes[episode.uuid].advantage for episode in group.episodes] == [0.5, None, -0.5, None]
    assert batch.outcomes["f"].untrained == {"failed": 3} and batch.outcomes["n"].untrained == {"no_score": 2}
    for sample in batch.samples:
        wanted = np.where(sample.timeline.mask, 0.5 if sample.episode == "a" else -0.5, 0)
        np.testing.assert_array_equal(sample.advantages, wanted)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "sequence-sum"])
def test_weights_are_those_of_decision_8(aggregation):
    """Over two timelines of one episode, and with a silent group that counts but is not trained."""
    group = group_of(episode_of(1.0, (4, 2), uuid="a"), episode_of(0.0, (3,), uuid="b"))
    silent = group_of(episode_of(1.0, (7,), uuid="c"), episode_of(1.0, (1,), uuid="d"))
    config = config_of(algorithm__loss_aggregation=aggregation, data__max_response_length=100)
    batch = assign_credit([group, silent], config)
    wanted = {
        "token": {"a": 1 / 17, "b": 1 / 17},
        "sequence": {"a": 1 / (4 * 6), "b": 1 / (4 * 3)},
        "sequence-sum": {"a": 1 / 400, "b": 1 / 400},
    }[aggregation]
    assert [sample.episode for sample in batch.samples] == ["a", "a", "b"]
    for sample in batch.samples:
        assert sample.weight == pytest.approx(wanted[sample.episode], rel=1e-12)


def test_zero_variance_is_counted():
    silent = group_of(episode_of(0.5, (4, 2), uuid="a"), episode_of(0.5, (3,), uuid="b"))
    batch = assign_credit([silent], config_of())
    assert batch.samples == []
    assert [batch.outcomes[uuid].untrained["zero_variance"] for uuid in "ab"] == [6, 3]
    assert batch.metrics["credit/zero_variance_groups"] == 1


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_a_judges_rounding_is_no_preference(estimator):
    """Rewards 1e-5 apart, divided by their standard deviation, would be advantages of about 1."""
    rounded = group_of(episode_of(0.5, uuid="a"), episode_of(0.50001, uuid="b"), episode_of(0.49999, uuid="c"))
    batch = assign_credit([rounded], config_of(algorithm__adv_estimator=estimator))
    assert batch.samples == [] and batch.metrics["credit/zero_variance_groups"] == 1
    assert all(each.untrained["zero_variance"] == 3 for each in batch.outcomes.values())
    small = group_of(episode_of(0.5, uuid="a"), episode_of(0.50001, uuid="b"))
    assert len(assign_credit([small], config_of(algorithm__equal_rewards=0.0)).samples) == 2
    clear = group_of(episode_of(0.5, uuid="a"), episode_of(0.501, uuid="b"))
    assert len(assign_credit([clear], config_of(algorithm__adv_estimator=estimator)).samples) == 2


def test_a_kl_term_trains_silent_groups_too():
    """Their policy loss is 0, their KL loss is not: leaving them out would change the gradient."""
    silent = group_of(episode_of(0.5, uuid="a"), episode_of(0.5, uuid="b"))
    batch = assign_credit([silent], config_of(use_kl_loss=True))
    assert len(batch.samples) == 2 and not batch.outcomes["a"].untrained
    assert all(not sample.advantages.any() for sample in batch.samples)


def test_dynamic_sampling_leaves_silent_groups_out_of_the_weights():
    group = group_of(episode_of(1.0, (4,), uuid="a"), episode_of(0.0, (2,), uuid="b"))
    silent = group_of(episode_of(1.0, (7,), uuid="c"), episode_of(1.0, (1,), uuid="d"))
    config = config_of(algorithm__dynamic_sampling=True, use_kl_loss=True)
    batch = assign_credit([silent, group], config)
    assert [(s.episode, s.weight) for s in batch.samples] == [("a", 1 / 8), ("b", 1 / 4)]
    assert batch.outcomes["c"] == Outcome(None, None, {"zero_variance": 7})


def test_kl_in_reward_by_hand():
    """The episode's return is its reward minus coefficient times the sum of log policy - log reference."""
    group = group_of(episode_of(1.0, (2,), uuid="a"), episode_of(1.0, (1, 1), uuid="b"))

    def logprobs(samples):
        policy = [np.where(s.timeline.mask, -1.0, 0).astype(np.float32) for s in samples]
        gap = {"a": 0.5, "b": 0.25}
        reference = [np.where(s.timeline.mask, -1.0 - gap[s.episode], 0).astype(np.float32) for s in samples]
        return policy, reference

    config = config_of(
        algorithm__use_kl_in_reward=True, algorithm__kl_in_reward_coef=0.1, algorithm__norm_adv_by_std=False
    )
    batch = assign_credit([group], config, reference=logprobs)
    returns = [1 - 0.1 * 2 * 0.5, 1 - 0.1 * 2 * 0.25]
    mean = sum(returns) / 2
    assert batch.outcomes["a"].advantage == pytest.approx(returns[0] - mean)
    assert batch.outcomes["b"].advantage == pytest.approx(returns[1] - mean)
    assert all(sample.reference is not None for sample in batch.samples)
    again = assign_credit([group], config, reference=make_recorded_reference(batch.outcomes))
    assert again.outcomes == batch.outcomes and again.metrics == batch.metrics, "as a proof does it"
    with pytest.raises(NotRecordedError, match="^a$"):
        assign_credit([group], config, reference=make_recorded_reference({}))


def test_kl_in_reward_of_reinforce_plus_plus_follows_the_order_of_sampling():
    episode, other = episode_of(0.0, (1, 1), uuid="a"), episode_of(1.0, (1,), uuid="b")
    episode.timelines.reverse()

    def logprobs(samples):
        return [s.timeline.mask.astype(np.float32) for s in samples], [np.zeros(s.timeline.ids.size) for s in samples]

    config = config_of(
        algorithm__use_kl_in_reward=True,
        algorithm__kl_in_reward_coef=1.0,
        algorithm__adv_estimator="reinforce_plus_plus",
    )
    batch = assign_credit([group_of(episode, other)], config, reference=logprobs)
    by_call = {s.timeline.spans[0].call: float(s.advantages.min()) for s in batch.samples if s.episode == "a"}
    assert by_call[0] < by_call[1] < 0, "the first token pays for both, the second for itself"


def test_kl_in_reward_without_a_reference_is_refused():
    with pytest.raises(ValueError, match="reference"):
        assign_credit([group_of(episode_of(1.0))], config_of(algorithm__use_kl_in_reward=True))


def test_no_groups():
    batch = assign_credit([], config_of())
    assert batch.samples == [] and batch.trained_tokens == 0


def test_advantages_are_scaled():
    group = [group_of(*(episode_of(r, uuid=str(n)) for n, r in enumerate([1.0, 0.0, 0.5])))]
    plain, scaled = (assign_credit(group, config_of(algorithm__adv_scaling=scale)) for scale in (1.0, 2.5))
    for one, other in zip(plain.samples, scaled.samples, strict=True):
        np.testing.assert_allclose(other.advantages, 2.5 * one.advantages, rtol=1e-6)


@pytest.mark.parametrize("estimator", ["reinforce_plus_plus", "gdpo"])
def test_what_dynamic_sampling_leaves_out_is_not_what_others_are_normalised_by(estimator):
    silent = group_of(episode_of(1.0, uuid="a"), episode_of(1.0, uuid="b"))
    others = [group_of(episode_of(1.0, uuid=f"{n}+"), episode_of(0.0, uuid=f"{n}-")) for n in range(2)]
    config = config_of(algorithm__adv_estimator=estimator, algorithm__dynamic_sampling=True)
    found, alone = assign_credit([silent, *others], config), assign_credit(others, config)
    assert {name: found.outcomes[name] for name in alone.outcomes} == alone.outcomes
    assert found.outcomes["a"].untrained == {"zero_variance": 3}
    assert assign_credit([silent], config).outcomes["a"].untrained == {"zero_variance": 3}  # the only one


@pytest.mark.parametrize("dynamic", [False, True])
def test_balanced_groups_train_on_nearly_as_many_failures_as_successes(dynamic):
    """AgentRL's numbers: of nine of reward 0 and one of another, 1 + 1 and 1; the baseline is over all ten."""
    rewards = [0.0] * 9 + [0.8]
    group = group_of(*(replace(episode_of(r, (3,), uuid=str(n)), repeat=n) for n, r in enumerate(rewards)))
    equal = group_of(episode_of(1.0, (2,), uuid="x"), episode_of(1.0, (2,), uuid="y"))
    changes = {"algorithm__balance_sample": True, "algorithm__dynamic_sampling": dynamic}
    config = config_of(algorithm__adv_estimator="rloo", algorithm__loss_aggregation="token", **changes)
    batch = assign_credit([group, equal], config)
    left = [uuid for uuid, each in batch.outcomes.items() if each.untrained.get("balanced") == 3]
    assert len(left) == 7 and "9" not in left and batch.metrics["credit/balanced_episodes"] == 7
    assert batch.outcomes["9"].advantage == pytest.approx(0.8)
    assert len(batch.samples) == 3 and assign_credit([group, equal], config).outcomes == batch.outcomes
    tokens = 9 if dynamic else 13
    assert {sample.weight for sample in batch.samples} == {1 / tokens}
    many = group_of(*(episode_of(r, uuid=str(n)) for n, r in enumerate([0.0, 1.0, 1.0, 1.0, 1.0])))
    assert len(assign_credit([many], config).samples) == 1 + 3


def test_overlong_shaping_by_hand():
    """DAPO, section 3.4, with L = 10, c = 4 and p = 0.5; what it takes away is compared as any reward is."""
    overlong = dict(algorithm__overlong__length=10, algorithm__overlong__buffer=4, algorithm__overlong__penalty=0.5)
    config = config_of(algorithm__norm_adv_by_std=False, **overlong)
    lost = {6: 0.0, 7: 0.125, 9: 0.375, 10: 0.5, 30: 0.5}
    group = group_of(*(episode_of(1.0, (n,), uuid=str(n)) for n in lost))
    batch = assign_credit([group], config)
    mean = sum(lost.values()) / 5
    for n, penalty in lost.items():
        assert batch.outcomes[str(n)].advantage == pytest.approx(mean - penalty, abs=1e-7)
    assert batch.metrics["credit/overlong_penalty_mean"] == pytest.approx(mean)
    assert batch.metrics["credit/overlong_fraction"] == pytest.approx(4 / 5)
    assert open_algorithm(config).learns_from(group) and not open_algorithm(config_of()).learns_from(group)
    assert not open_algorithm(config).learns_from(group_of(episode_of(1.0, (5,)), episode_of(1.0, (3,))))
    long = group.episodes[-1]
    (call,) = long.calls
    long.calls[:] = [replace(call, trained=False, turned_down=True)]  # by `train_turn`
    assert count_sampled_tokens(long) == 30, "a turn that is not trained was sampled all the same"
    long.calls[:] = [replace(call, trained=False)]
    assert count_sampled_tokens(long) == 0, "another agent's, or another model's"
    with pytest.raises(UserError, match="10 tokens"):
        open_algorithm(config_of(**{**overlong, "algorithm__overlong__buffer": 11}))


def several(uuid, **parts):
    """An attempt whose reward is the sum of what its scorers gave."""
    made = episode_of(sum(parts.values()), uuid=uuid)
    return replace(made, verdict=replace(made.verdict, parts=parts, scorer="+".join(parts)))


def test_gdpo_by_hand():
    """Two rewards of very different size: GRPO over their sum hardly sees the second one."""
    rewards = {"a": [10.0, 0.0, 10.0, 0.0], "b": [1.0, 0.0, 0.0, 1.0]}
    attempts = [several(f"{i}", a=a, b=b) for i, (a, b) in enumerate(zip(*rewards.values(), strict=True))]
    single = [several("x", a=3.0, b=0.5), several("y", a=3.0, b=0.5)]

    def normal(values):
        mean = sum(values) / len(values)
        std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
        return [(v - mean) / (std + 1e-6) for v in values]

    total = [2 * a + b for a, b in zip(normal(rewards["a"]), normal(rewards["b"]), strict=True)]
    spread = math.sqrt(sum(v * v for v in [*total, 0, 0]) / 5)
    config = config_of(algorithm__adv_estimator="gdpo", algorithm__reward_weights={"a": 2.0})
    batch = assign_credit([group_of(*attempts), group_of(*single)], config)
    for i, value in enumerate(total):
        assert batch.outcomes[str(i)].advantage == pytest.approx(value / (spread + 1e-6), rel=1e-6)
    assert batch.outcomes["x"].untrained == {"zero_variance": 3}, "a group in which no reward differs"


def test_gdpo_learns_where_the_sum_is_equal():
    group = group_of(
        several("a", right=1.0, short=0.0), several("b", right=0.0, short=1.0), several("c", right=0.0, short=1.0)
    )
    gdpo = config_of(algorithm__adv_estimator="gdpo", algorithm__reward_weights={"right": 3.0})
    assert not open_algorithm(config_of()).learns_from(group) and open_algorithm(gdpo).learns_from(group)
    outcomes = assign_credit([group], gdpo).outcomes
    assert outcomes["a"].advantage > 1 > 0 > outcomes["b"].advantage == outcomes["c"].advantage
    ended = replace(episode_of(-1.0, uuid="d"))  # by a check, without parts: -1 in each
    assert assign_credit([group_of(*group.episodes, ended)], gdpo).outcomes["d"].advantage < outcomes["b"].advantage
    with pytest.raises(UserError, match="no reward named write"):
        unlike = config_of(algorithm__adv_estimator="gdpo", algorithm__reward_weights={"write": 1.0})
        assign_credit([group, group_of(several("e", right=1.0), several("f", right=0.0))], unlike)


def told(made, **more):
    """The same, where a scorer told further numbers, which are no scorers'."""
    return replace(made, verdict=replace(made.verdict, parts={**made.verdict.parts, **more}))


def test_gdpo_compares_what_scorers_gave_and_what_is_named():
    """Not whatever else was told, such as a length; and each group by its own scorers."""
    gdpo = config_of(algorithm__adv_estimator="gdpo")
    right = [told(several("a", right=1.0), length=10.0), told(several("b", right=0.0), length=900.0)]
    other = [several("c", exact=1.0, f1=0.0), several("d", exact=0.0, f1=0.0)]
    plain = [several("a", right=1.0), several("b", right=0.0)]
    batch = assign_credit([group_of(*right), group_of(*other)], gdpo)
    assert batch.outcomes == assign_credit([group_of(*plain), group_of(*other)], gdpo).outcomes
    assert (
        batch.outcomes["a"].advantage == pytest.approx(batch.outcomes["c"].advantage)
        and batch.outcomes["a"].advantage > 0
    )
    named = config_of(algorithm__adv_estimator="gdpo", algorithm__reward_weights={"length": 3.0})
    assert assign_credit([group_of(*right), group_of(*other)], named).outcomes["a"].advantage < 0
    by_judge = [told(episode_of(r, uuid=str(r)), words=-r) for r in (0.0, 1.0)]
    assert assign_credit([group_of(*by_judge)], gdpo).outcomes["1.0"].advantage > 0, "the reward itself"


def test_gdpo_knows_the_coefficient_of_a_penalty():
    """A small one does not count as much as what is right."""
    attempts = [several("a", right=1.0), several("b", right=0.0), several("c", right=1.0), several("d", right=0.0)]
    penalties = [np.array([2.0, 1.0]), np.array([0.5]), np.zeros(2), np.zeros(1)]
    whole = 0.5 / (math.sqrt(0.5) + 1e-6)
    for coefficient in (0.01, 0.1):
        charged = [coefficient * each for each in penalties]
        rows = algorithm("gdpo").of_episodes(attempts, np.array([1.0, 0.0, 1.0, 0.0]), charged, [0, 0, 1, 1])
        less = whole - coefficient * (3.0 - 0.5) / 2
        spread = math.sqrt((2 * less**2 + 2 * whole**2) / 3) + 1e-6
        np.testing.assert_allclose([row[0] * spread for row in rows], [less, -less, whole, -whole], rtol=1e-9)


def test_gdpo_counts_length_once_and_by_its_weight():
    overlong = dict(algorithm__overlong__length=4, algorithm__adv_estimator="gdpo")
    group = group_of(*(episode_of(r, (n,), uuid=str(n)) for n, r in ((3, 0.0), (9, 1.0))))
    assert assign_credit([group], config_of(**overlong)).outcomes["9"].untrained, "right is worth what too long costs"
    assert (
        assign_credit([group], config_of(**overlong, algorithm__reward_weights={"overlong": 0.5}))
        .outcomes["9"]
        .advantage
        > 0
    )


@pytest.mark.parametrize(
    ("scorers", "settings", "why"),
    [
        ([{"name": "exact"}, {"name": "s.py->words", "weight": 0.0}], {}, "words has the weight 0"),
        ([{"name": "exact"}, {"name": "f1", "weight": -0.5}], {"reward_weights": {"exact": 2.0}}, "weight -0.5"),
        ([{"name": "exact"}, {"name": "f1"}], {"reward_weights": {"exat": 2.0}}, "no reward named exat"),
    ],
)
def test_gdpo_refuses_before_a_run_what_it_would_read_otherwise(scorers, settings, why):
    config = Experiment.from_dict(
        {"ajet": {"task_judge": {"scorers": scorers}, "trainer_common": {"algorithm": {"adv_estimator": "gdpo"}}}},
        base=Path.cwd(),
    ).ajet
    open_algorithm(config.model_copy(update={"task_judge": config_of().task_judge}))
    for name, value in settings.items():
        setattr(config.trainer_common.algorithm, name, value)
    with pytest.raises(UserError, match=why):
        open_algorithm(config)
