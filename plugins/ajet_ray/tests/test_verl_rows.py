"""Episodes as verl's rows and back: credit must not notice."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.algorithm import assign_credit
from ajet.record.episode_codec import rebuild as rebuild_timeline
from ajet.schema.call import VersionRun
from ajet.schema.episode import Failure, Group, SampledSpan
from ajet_ray.rows import FIELDS, NO_TOKEN, build_rows, rebuild_groups, unpack_episode
from tests.support import record_fixtures as recorded
from tests.support.local_fixtures import calls_of, config_of, episode_of, group_of, timeline_of
from tests.support.record_fixtures import assert_equal

pytestmark = [pytest.mark.verl, pytest.mark.slow]


def stored(group: Group, uid: str) -> list[tuple[str, dict]]:
    """What verl's queue holds of a group."""
    found = []
    unscored = [episode for episode in group.episodes if not episode.scored]
    for episode in group.episodes:
        others = unscored if group.scored and episode is group.scored[0] else []
        for index, row in enumerate(build_rows(episode, group_order=group.order, others=others)):
            names = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")
            values = dict(zip(FIELDS, [np.array(row[name]) for name in names] + [row["extra_fields"]], strict=True))
            found.append((f"{uid}_{episode.repeat}_{index}", values))
    return found


def round_trip(groups, order=None):
    items = [item for index, group in enumerate(groups) for item in stored(group, f"u-{index}")]
    items = [items[index] for index in (order or range(len(items)))]
    keys, values = [key for key, _ in items], [value for _, value in items]
    return keys, rebuild_groups(keys, {name: [value[name] for value in values] for name in FIELDS})


@st.composite
def timelines(draw: st.DrawFn, first_call: int):
    """Some replies with context between them, maybe context after the last."""
    ids, runs = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)), []
    for _ in range(draw(st.integers(1, 3))):
        reply = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
        runs.append((len(ids), len(ids) + len(reply)))
        ids = ids + reply + draw(st.lists(st.integers(0, 9), max_size=2))
    logprobs = [-draw(st.floats(0, 5, width=32)) for _ in ids]
    timeline = timeline_of(ids, runs, logprobs)
    timeline.logprobs = np.where(timeline.mask, timeline.logprobs, 0).astype(np.float32)
    timeline.spans = tuple(SampledSpan(first_call + n, *run) for n, run in enumerate(runs))
    timeline.versions[timeline.mask] = draw(
        st.lists(st.integers(0, 2), min_size=len(logprobs), max_size=len(logprobs))
    )[: timeline.sampled]
    return timeline


@st.composite
def groups_of_episodes(draw: st.DrawFn):
    made = []
    for order in range(draw(st.integers(1, 3))):
        members = []
        for repeat in range(draw(st.integers(1, 4))):
            reward = draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
            status, spans = draw(st.sampled_from(["completed"] * 4 + ["failed"])), 0
            whole = episode_of(reward, (1,), uuid=f"{order}/{repeat}")
            episode = replace(whole, repeat=repeat, status=status, timelines=[])
            for _ in range(draw(st.integers(0, 3))):
                episode.timelines.append(draw(timelines(spans)))
                episode.calls[spans:] = calls_of(episode.timelines[-1], whole.calls[0])
                spans += len(episode.timelines[-1].spans)
            if draw(st.booleans()):  # of two branches either may hold the earlier calls
                episode.timelines.reverse()
            members.append(episode)
        made.append(group_of(*members))
        made[-1].order = order
    return made


@settings(deadline=None)
@given(groups_of_episodes(), st.data())
def test_credit_over_the_rows_is_credit_over_the_episodes(groups, data):
    aggregation = data.draw(st.sampled_from(["sequence", "token", "sequence-sum"]))
    estimator = data.draw(st.sampled_from(["grpo", "rloo", "reinforce_plus_plus"]))
    config = config_of(
        algorithm__loss_aggregation=aggregation,
        algorithm__adv_estimator=estimator,
        algorithm__use_kl_in_reward=data.draw(st.booleans()),
        algorithm__kl_in_reward_coef=0.3,
        use_kl_loss=data.draw(st.booleans()),
    )

    def reference(samples):
        policy = [sample.timeline.logprobs for sample in samples]
        return policy, [0.5 * row for row in policy]

    count = sum(len(stored(group, "u")) for group in groups)
    _, back = round_trip(groups, data.draw(st.permutations(range(count))))
    wanted = assign_credit(copy.deepcopy(groups), config, reference=reference)
    found = assign_credit(back.groups, config, reference=reference)
    assert [s.episode for s in found.samples] == [s.episode for s in wanted.samples]
    for have, want in zip(found.samples, wanted.samples, strict=True):
        size = have.timeline.ids.size
        assert not want.timeline.mask[size:].any()
        assert have.weight == want.weight
        for name in ("ids", "mask", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(have.timeline, name), getattr(want.timeline, name)[:size])
        np.testing.assert_array_equal(have.advantages, want.advantages[:size])


def test_a_row_is_what_verl_takes():
    timeline = timeline_of([5, 6, 7, 8, 9, 4, 3], [(2, 3), (4, 6)], [0, 0, -1, 0, -2, -3, 0])
    episode = replace(episode_of(0.5, (2,), uuid="a"), run="run", repeat=3, step=7, timelines=[timeline])
    episode.calls[0].versions = (VersionRun(0, 4, 5),)
    episode.calls[:] = calls_of(timeline, episode.calls[0])
    assert episode.verdict is not None
    episode.verdict.success = True
    (row,) = build_rows(episode, group_order=11)
    extra = row.pop("extra_fields")
    assert row == {
        "prompt_ids": [5, 6],
        "response_ids": [7, 8, 9, 4],
        "response_mask": [1, 0, 1, 1],
        "response_logprobs": [-1, 0, -2, -3],
        "reward_score": 0.5,
        "num_turns": 0,
        "metrics": {"generate_sequences": 0.0},
    }
    about = extra.pop("ajet")
    assert extra == {"reward_extra_info": {"success": 1.0}, "min_global_steps": 4, "max_global_steps": 5}
    (whole,) = about.pop("episodes")
    assert_equal(unpack_episode(whole), episode)
    assert about == {"uuid": "a", "order": 11, "index": 0, "count": 1}


def test_what_may_not_be_trained_has_no_row():
    assert build_rows(episode_of(None), group_order=0) == []
    assert build_rows(episode_of(1.0, status="failed"), group_order=0) == []


def test_a_scored_episode_without_tokens_stays_in_the_baseline():
    group = group_of(episode_of(1.0, (), uuid="a"), episode_of(0.0, (2,), uuid="b"))
    group.episodes[1] = replace(group.episodes[1], repeat=1)
    (empty,) = build_rows(group.episodes[0], group_order=0, policy_version=4)
    assert empty["response_ids"] == [NO_TOKEN] and empty["response_mask"] == [0]
    assert empty["extra_fields"]["min_global_steps"] == 4
    _, back = round_trip([group])
    assert back.timelines[0] is None and back.timelines[1] is not None
    batch = assign_credit(back.groups, config_of(algorithm__norm_adv_by_std=False))
    assert [sample.episode for sample in batch.samples] == ["b"] and batch.samples[0].advantages.min() == -0.5


def test_the_trainer_sees_each_episode_as_it_was_recorded():
    """Also those without a row; of timelines no more than the rows hold."""
    told = dict.fromkeys((0, 1, 2), "train")
    group = Group(recorded.episode().task, 3, [recorded.episode(f"e{n}", n, repeat=n, split=told[n]) for n in told])
    group.episodes[1] = recorded.episode("e1", repeat=1, status="failed", failure=Failure("agent", "E", "no"),
                                         verdict=None, timelines=[])  # fmt: skip
    _, back = round_trip([group])
    (again,) = back.groups
    assert (again.task, again.order) == (group.task, 3)
    for have, want in zip(again.episodes, group.episodes, strict=True):
        assert [line.ids.tolist() for line in have.timelines] == [line.ids.tolist() for line in want.timelines]
        assert_equal(replace(have, timelines=want.timelines), want)


def test_what_an_episode_adds_to_its_rows_is_a_fraction_of_them():
    """At temperature 1, where both log-probabilities are one. The queue holds prompt and response, both together, their
    positions, the mask, and three numbers a response token (sampled from, before the update, credit)."""
    calls = [recorded.call(0, None, 0, 900, 700), recorded.call(1, 0, 1600, 50, 400)]
    calls = [replace(call, logprobs_unit=call.logprobs) for call in calls]
    line = rebuild_timeline(calls, 1, "solver", "policy", (SampledSpan(0, 900, 1600), SampledSpan(1, 1650, 2050)))
    messages = [{"role": "user", "content": "what is the price of a loaf " * 120}] * 3
    (row,) = build_rows(recorded.episode(calls=calls, timelines=[line], messages=messages), group_order=0)
    replied = len(row["response_ids"])
    queued = 8 * 3 * (len(row["prompt_ids"]) + replied) + (8 + 3 * 4) * replied
    assert len(row["extra_fields"]["ajet"]["episodes"][0]) < 0.2 * queued


def test_a_row_with_other_tokens_than_its_episode_is_an_error():
    ((key, row),) = stored(group_of(episode_of(1.0, (2,), uuid="a")), "u")
    row["responses"] = row["responses"] + 1
    with pytest.raises(ValueError, match="episode a: row 0 contains other tokens"):
        rebuild_groups([key], {name: [row[name]] for name in FIELDS})


def test_a_missing_row_is_an_error():
    items = stored(group_of(episode_of(1.0, (1, 2), uuid="a")), "u")[1:]
    with pytest.raises(ValueError, match="episode a: of 2 timelines only \\[1\\] arrived"):
        rebuild_groups([key for key, _ in items], {name: [value[name] for _, value in items] for name in FIELDS})


def test_a_timeline_that_begins_with_a_sampled_token_is_an_error():
    episode = replace(episode_of(1.0), timelines=[timeline_of([1, 2], [(0, 2)])])
    with pytest.raises(ValueError, match="begins with a sampled token"):
        build_rows(episode, group_order=0)


def test_an_episode_that_failed_with_a_reward_trains_as_any_other():
    failure = Failure("agent", "ValueError", "no number", policy=True)
    failed = replace(episode_of(-1.0, uuid="0/0", status="failed"), failure=failure)
    good = replace(episode_of(1.0, uuid="0/1", seed=1), repeat=1)
    here = assign_credit([copy.deepcopy(group_of(failed, good))], config_of())
    _, there = round_trip([group_of(failed, good)])
    again = assign_credit(there.groups, config_of())
    assert [sample.advantages.tolist() for sample in again.samples] == [s.advantages.tolist() for s in here.samples]
    assert len(here.samples) == 2 and build_rows(episode_of(None, status="failed"), group_order=0) == []
