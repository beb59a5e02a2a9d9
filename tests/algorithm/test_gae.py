"""PPO's advantages, its value loss and the value head, against numbers computed by hand and by differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.gae import estimate_advantages
from ajet.algorithm.recorded_models import NotRecordedError, make_recorded_critic
from ajet.config import Experiment
from ajet.schema.episode import Episode, SampledSpan
from ajet.schema.errors import ConfigError
from ajet.schema.process_reward import ProcessReward, ReplySpan
from ajet.schema.task import Task
from tests.support.local_fixtures import config_of, episode_of, group_of, sample_of

GAE = dict(algorithm__adv_estimator="gae", algorithm__norm_adv_by_std=False)


def test_the_recursion_by_hand():
    """gamma 0.5, lam 0.5; delta: 0 + 0.5*0.4 - 0.2 = 0; 0 + 0.5*0.8 - 0.4 = 0; 1 - 0.8 = 0.2."""
    found = estimate_advantages(np.array([0.0, 0.0, 1.0]), np.array([0.2, 0.4, 0.8]), 0.5, 0.5)
    np.testing.assert_allclose(found, [0.2 / 16, 0.2 / 4, 0.2], atol=1e-12)
    told = estimate_advantages(np.array([0.0, 0.0, 1.0]), np.array([0.2, 0.4, 0.8]), 1.0, 1.0)
    np.testing.assert_allclose(told, [0.8, 0.6, 0.2], err_msg="with 1 and 1: what came, less what was expected")


def two_turns(reward=1.0, *, split=False, process=()) -> Episode:
    """A prompt of 2, a reply of 2, an observation of 3, a reply of 1; as one timeline, or as one for each call."""
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    episode = episode_of(reward, (1,), uuid="a")
    episode.untrained.clear()
    whole = sample_of(ids, [(2, 4), (7, 8)]).timeline
    first, second = sample_of(ids[:4], [(2, 4)]).timeline, sample_of(ids, [(7, 8)]).timeline
    second.spans = (SampledSpan(1, 7, 8),)
    verdict = replace(episode.verdict, process=tuple(process))
    return replace(episode, timelines=[first, second] if split else [whole], verdict=verdict)


def by_id(samples):
    """A critic that expects a tenth of a token's id before it; elsewhere 9, which nobody may read."""
    return [np.where(s.timeline.mask, s.timeline.ids / 10, 9).astype(np.float32) for s in samples]


@pytest.mark.parametrize("split", [False, True])
def test_an_observation_takes_no_time_and_timelines_change_nothing(split):
    """V = 0.3, 0.4 | 0.8; gamma 0.9, lam 0.5. delta: 0.06, 0.32, 0.2; A_2 = 0.2, A_1 = 0.32 + 0.45*0.2 = 0.41."""
    config = config_of(**GAE, algorithm__gamma=0.9, algorithm__lam=0.5)
    batch = assign_credit([group_of(two_turns(split=split))], config, step=1, critic=by_id)
    runs = [(s.advantages[s.timeline.mask], s.returns[s.timeline.mask]) for s in batch.samples]
    advantages, returns = (np.concatenate(part) for part in zip(*runs, strict=True))
    np.testing.assert_allclose(advantages, [0.06 + 0.45 * 0.41, 0.41, 0.2], rtol=1e-5)
    np.testing.assert_allclose(returns, advantages + [0.3, 0.4, 0.8], rtol=1e-6)
    assert batch.metrics["critic/value_mean"] == pytest.approx(0.5, rel=1e-5)
    spread = np.var(returns - [0.3, 0.4, 0.8]) / np.var(returns)
    assert batch.metrics["critic/explained_variance"] == pytest.approx(1 - spread, rel=1e-4)
    outcome = batch.outcomes["a"]
    np.testing.assert_allclose(outcome.values, [0.3, 0.4, 0.8])
    again = assign_credit(
        [group_of(two_turns(split=split))], config, step=1, critic=make_recorded_critic(batch.outcomes)
    )
    assert again.outcomes == batch.outcomes and again.metrics == batch.metrics, "as a proof does it"
    with pytest.raises(NotRecordedError, match="^a$"):
        assign_credit([group_of(two_turns(split=split))], config, step=1, critic=make_recorded_critic({}))
    outcome.values[1] = np.nan  # in a damaged record
    with pytest.raises(NotRecordedError, match="^a$"):
        assign_credit([group_of(two_turns(split=split))], config, step=1, critic=make_recorded_critic(batch.outcomes))


def test_a_steps_reward_comes_at_the_end_of_the_step():
    """Of 0.5, at the second token, times process_weight 2; with gamma and lam 1 a token has all that is to come."""
    part = ProcessReward(reward=0.5, step=0, name="", tokens=(ReplySpan(0, 0, 2),))
    config = config_of(**GAE, algorithm__process_weight=2.0)
    batch = assign_credit([group_of(two_turns(process=[part]))], config, step=1, critic=by_id)
    np.testing.assert_allclose(batch.samples[0].returns[batch.samples[0].timeline.mask], [2.0, 2.0, 1.0])
    assert batch.metrics["credit/parts"] == 1
    cut = [
        part.model_copy(update={"tokens": (ReplySpan(call, start, stop),)})
        for call, start, stop in ((0, 2, 3), (1, 0, 0))
    ]
    batch = assign_credit([group_of(two_turns(process=cut))], config, step=1, critic=by_id)
    np.testing.assert_allclose(batch.samples[0].returns[batch.samples[0].timeline.mask], [1.0] * 3, err_msg="untrained")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_it_is_the_sum_that_the_paper_has(data):
    """A_t = the sum over l of (gamma lam)^l delta_t+l, over episodes of several turns, in one timeline or in several,
    however many tokens lie between."""
    number = st.floats(-2, 2, width=32)
    gamma, lam = data.draw(st.floats(0, 1, width=32)), data.draw(st.floats(0, 1, width=32))
    turns = data.draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=4))
    runs, end = [], 0
    for shown, said in turns:
        runs.append((end + shown, end + shown + said))
        end += shown + said
    count = sum(said for _, said in turns)
    values = np.array(data.draw(st.lists(number, min_size=count, max_size=count)))
    reward = data.draw(number)
    lines = []
    for call, (start, stop) in enumerate(runs) if data.draw(st.booleans()) else [(None, (0, 0))]:
        line = sample_of(range(stop or end), [(start, stop)] if call is not None else runs).timeline
        line.spans = (SampledSpan(call, start, stop),) if call is not None else line.spans
        lines.append(line)
    episode = replace(episode_of(reward, (1,), uuid="a"), timelines=lines)
    episode.untrained.clear()
    order = np.concatenate([np.arange(start, stop) for start, stop in runs])

    def critic(samples):
        table = np.zeros(end, np.float32)
        table[order] = values
        return [table[: s.timeline.ids.size] for s in samples]

    config = config_of(**GAE, algorithm__gamma=gamma, algorithm__lam=lam)
    batch = assign_credit([group_of(episode)], config, step=1, critic=critic)
    found = np.zeros(end)
    for sample in batch.samples:
        found[np.flatnonzero(sample.timeline.mask)] = sample.advantages[sample.timeline.mask]
    given_T = np.append(np.zeros(count - 1), np.float64(reward))
    deltas = given_T + gamma * np.append(values[1:], 0) - values
    wanted = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)]
    np.testing.assert_allclose(found[order], wanted, rtol=1e-4, atol=1e-5)


def test_the_batch_is_normalised_over_episodes():
    config = config_of(algorithm__adv_estimator="gae")
    lone = [two_turns(reward) for reward in (0.0, 1.0, 1.0)]
    groups = [group_of(replace(each, uuid=str(at), task=Task(task_id=str(at)))) for at, each in enumerate(lone)]
    batch = assign_credit(groups, config, step=1, critic=by_id)
    rows = [sample.advantages[sample.timeline.mask] for sample in batch.samples]
    assert np.mean([row.mean() for row in rows]) == pytest.approx(0, abs=1e-6)
    assert np.mean([np.mean(row**2) for row in rows]) == pytest.approx(1, rel=1e-4)
    assert batch.metrics["credit/zero_variance_groups"] == 0, "one attempt at a task is something to learn from"


def test_it_needs_its_critic():
    with pytest.raises(ValueError, match="gae needs a critic"):
        assign_credit([group_of(two_turns())], config_of(**GAE), step=1)


def test_one_head_does_not_serve_several_adapters():
    lora = {"adapters": {"one": {"agents": ["a"]}, "other": {"agents": ["b"]}}}
    tree = {"backbone": "local", "trainer_common": {"algorithm": {"adv_estimator": "gae"}, "lora": lora}}
    with pytest.raises(ConfigError, match="one value head"):
        open_algorithm(Experiment.from_dict({"ajet": tree}, base=Path()).ajet)


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_a_backbone_without_a_critic_refuses_it_by_name(backbone):
    tree = {"backbone": backbone, "trainer_common": {"algorithm": {"adv_estimator": "gae"}}}
    with pytest.raises(ConfigError, match="critic") as refused:
        open_algorithm(Experiment.from_dict({"ajet": tree}, base=Path()).ajet)
    assert "adv_estimator" in str(refused.value) and "local" in str(refused.value)
