"""Credit of parts: who gets it, how much it sums to, and GiGPO against its paper's formula by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.algorithm import assign_credit, open_algorithm
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.process_reward import ProcessReward, ReplySpan
from tests.support.local_fixtures import config_of, episode_of, group_of


def with_parts(episode: Episode, *parts: ProcessReward) -> Episode:
    assert episode.verdict is not None
    return replace(episode, verdict=replace(episode.verdict, process=parts))


def added(groups: list[Group], **changes: Any) -> dict[str, np.ndarray]:
    """[T] by episode, in the order of its calls: what its tokens get more than without rewards of parts."""
    rows = []
    for weight in (changes.pop("algorithm__process_weight", 1.0), 0.0):
        batch = assign_credit(groups, config_of(algorithm__process_weight=weight, use_kl_loss=True, **changes))
        found: dict[str, np.ndarray] = {}
        for sample in batch.samples:
            row = sample.advantages[sample.timeline.mask]
            found[sample.episode] = np.concatenate([found.get(sample.episode, np.zeros(0)), row])
        rows.append(found)
    return {uuid: with_them - rows[1][uuid] for uuid, with_them in rows[0].items()}


lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)
numbers = st.floats(-2, 2).map(lambda number: round(number, 2))


@st.composite
def groups(draw: Any) -> Group:
    """Attempts with random calls and, of each, random parts: one call or several, a piece of a reply."""
    episodes = []
    for number in range(draw(st.integers(2, 4))):
        sizes = draw(lengths)
        episode = episode_of(draw(numbers), sizes, uuid=f"e{number}", seed=number)
        parts = []
        for _ in range(draw(st.integers(0, 4))):
            call = draw(st.integers(0, len(sizes) - 1))
            start = draw(st.integers(0, sizes[call] - 1))
            spans = [ReplySpan(call, start, draw(st.integers(start + 1, sizes[call])))]
            kind = draw(st.sampled_from(["step", "text", "agent"]))
            if kind == "agent":
                spans = [ReplySpan(each, 0, size) for each, size in enumerate(sizes)]
            named = {"step": call} if kind == "step" else {kind: "a"}
            parts.append(ProcessReward(reward=draw(numbers), **named, tokens=tuple(spans)))
        episodes.append(with_parts(episode, *parts))
    return group_of(*episodes)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus"])
@settings(max_examples=40, deadline=None)
@given(group=groups(), weight=st.sampled_from([0.5, 1.0]))
def test_what_is_added_is_on_the_parts_tokens_and_sums_to_their_advantages(estimator, group, weight):
    changes = {"algorithm__adv_estimator": estimator, "algorithm__process_weight": weight}
    found = added([group], **changes)
    algorithm = open_algorithm(config_of(algorithm__adv_estimator=estimator))
    parts = [(episode.uuid, part) for episode in group.episodes for part in episode.verdict.process]
    names = list(dict.fromkeys(part.compared for _, part in parts))
    values = (
        algorithm.of_parts(
            np.array([part.reward for _, part in parts], np.float64), [names.index(part.compared) for _, part in parts]
        )
        if parts
        else []
    )
    for episode in group.episodes:
        row = found.get(episode.uuid, np.zeros(0))
        whole, touched = 0.0, np.zeros(row.size, bool)
        starts = np.cumsum([0, *(len(call.response_ids) for call in episode.calls)])
        for (uuid, part), value in zip(parts, values, strict=True):
            if uuid == episode.uuid:
                for span in part.tokens:
                    whole += weight * value * (span.stop - span.start)
                    touched[starts[span.call] + span.start : starts[span.call] + span.stop] = True
        assert row.sum() == pytest.approx(whole, abs=1e-4)
        assert not row[~touched].any()
    if estimator != "reinforce_plus_plus":
        for name in names:
            total = sum(value for (_, part), value in zip(parts, values, strict=True) if part.compared == name)
            assert total == pytest.approx(0, abs=1e-9)


def test_a_part_is_compared_with_those_of_its_name_alone():
    """By hand: step 0 was better in a, step 1 in b, and the attempts as a whole are equal."""
    a = with_parts(
        episode_of(1.0, (2, 3), uuid="a"),
        ProcessReward(reward=1, step=0, tokens=(ReplySpan(0, 0, 2),)),
        ProcessReward(reward=0, step=1, tokens=(ReplySpan(1, 0, 3),)),
    )
    b = with_parts(
        episode_of(1.0, (2, 3), uuid="b"),
        ProcessReward(reward=0, step=0, tokens=(ReplySpan(0, 0, 2),)),
        ProcessReward(reward=4, step=1, tokens=(ReplySpan(1, 0, 3),)),
    )
    one = 1 / (math.sqrt(2) + 1e-6 * 2)
    batch = assign_credit([group_of(a, b)], config_of())
    rows = {uuid: [s.advantages[s.timeline.mask] for s in batch.samples if s.episode == uuid] for uuid in "ab"}
    np.testing.assert_allclose(np.concatenate(rows["a"]), [one, one, -one, -one, -one], rtol=1e-4)
    np.testing.assert_allclose(np.concatenate(rows["b"]), [-one, -one, one, one, one], rtol=1e-4)
    assert batch.metrics["credit/parts"] == 4 and batch.metrics["credit/zero_variance_groups"] == 0
    silent = assign_credit([group_of(a, b)], config_of(algorithm__process_weight=0))
    assert silent.samples == [] and silent.metrics["credit/zero_variance_groups"] == 1


def steps(reward: float, *shown: str, uuid: str) -> Episode:
    """An attempt with a call of two tokens for each observation."""
    episode = episode_of(reward, [2] * len(shown), uuid=uuid)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "play"}]
    calls = []
    for call, observation in zip(episode.calls, shown, strict=True):
        messages.append({"role": "tool", "tool_call_id": f"{uuid}-{call.index}", "content": observation})
        calls.append(replace(call, messages=tuple(range(len(messages)))))
        messages.append({"role": "assistant", "content": "go"})
    return replace(episode, calls=calls, messages=messages)


@pytest.mark.parametrize("by_std", [True, False])
def test_gigpo_by_the_papers_formula(by_std):
    """Two attempts start alike and meet again in the hall; gamma 0.5, w 2, only the outcome has a reward."""
    won, lost = steps(1.0, "start", "hall", "door", uuid="won"), steps(0.0, "start", "hall", uuid="lost")
    changes = {"algorithm__step_discount": 0.5, "algorithm__norm_adv_by_std": by_std}
    batch = assign_credit([group_of(won, lost)], config_of(
        algorithm__adv_estimator="gigpo", algorithm__process_weight=2.0, **changes
    ))  # fmt: skip
    rows = {u: [float(s.advantages[s.timeline.mask][0]) for s in batch.samples if s.episode == u] for u in
            ("won", "lost")}  # fmt: skip
    assert not by_std or len(rows["won"]) == 3

    def relative(mine: float, other: float) -> float:
        centred = (mine - other) / 2
        return centred / (abs(mine - other) / math.sqrt(2) + 1e-6) if by_std else centred

    whole = relative(1, 0)
    expected = [whole + 2 * relative(0.25, 0), whole + 2 * relative(0.5, 0), whole]  # the door was seen by one alone
    np.testing.assert_allclose(rows["won"], expected, rtol=1e-5)
    np.testing.assert_allclose(rows["lost"], [-expected[0], -expected[1]], rtol=1e-5)


def test_gigpo_takes_the_steps_own_rewards_where_there_are_any():
    one = steps(1.0, "start", "hall", uuid="one")
    other = steps(1.0, "start", "hall", uuid="other")
    spans = [(ReplySpan(0, 0, 2),), (ReplySpan(1, 0, 2),)]
    scored = [ProcessReward(reward=reward, step=at, tokens=spans[at]) for at, reward in enumerate((0.0, 1.0))]
    other_way = [ProcessReward(reward=reward, step=at, tokens=spans[at]) for at, reward in enumerate((1.0, 0.0))]
    group = group_of(with_parts(one, *scored), with_parts(other, *other_way))
    config = config_of(algorithm__adv_estimator="gigpo", algorithm__step_discount=0.0, algorithm__norm_adv_by_std=False)
    batch = assign_credit([group], config)
    rows = {s.episode: [] for s in batch.samples}
    for sample in batch.samples:
        rows[sample.episode].append(float(sample.advantages[sample.timeline.mask][0]))
    assert rows == {"one": [-0.5, 0.5], "other": [0.5, -0.5]}
    assert open_algorithm(config).learns_from(group), "although both attempts are worth the same"


def test_gigpo_adds_up_a_steps_rewards_and_counts_those_of_turns_that_do_not_train():
    spans = [(ReplySpan(0, 0, 2),), (ReplySpan(1, 0, 2),)]
    parts = [ProcessReward(reward=1.0, step=0, name="format", tokens=spans[0]),
             ProcessReward(reward=2.0, step=0, name="right", tokens=spans[0]),
             ProcessReward(reward=4.0, step=1, tokens=spans[1])]  # fmt: skip
    episode = with_parts(steps(7.0, "start", "hall", uuid="one"), *parts)
    gigpo = open_algorithm(config_of(algorithm__adv_estimator="gigpo", algorithm__step_discount=0.5))
    assert [part.reward for part in gigpo.parts(episode)] == [3.0 + 0.5 * 4.0, 4.0]
    chosen = replace(episode, calls=[episode.calls[0], replace(episode.calls[1], trained=False)])
    assert [part.reward for part in gigpo.parts(chosen)] == [3.0 + 0.5 * 4.0]


@pytest.mark.parametrize("finish", ["aborted", "error"])
def test_gigpo_ignores_undelivered_replies(finish):
    episode = steps(1.0, "start", "start", "hall", uuid="one")
    redrawn = replace(episode, calls=[replace(episode.calls[0], finish=finish), *episode.calls[1:]])
    gigpo = open_algorithm(config_of(algorithm__adv_estimator="gigpo", algorithm__step_discount=0.5))
    assert [(part.tokens[0].call, part.reward) for part in gigpo.parts(redrawn)] == [(1, 0.5), (2, 1.0)]
    cut = replace(episode, calls=[*episode.calls[:2], replace(episode.calls[2], finish=finish)])
    assert [(part.tokens[0].call, part.reward) for part in gigpo.parts(cut)] == [(0, 0.5), (1, 1.0)]


@pytest.mark.parametrize(
    "wrong",
    [{}, {"step": 1, "agent": "a"}, {"tool_use": 0, "text": "x"}, {"step": 0, "reward": math.nan},
     {"step": 0, "reward": True}, {"step": 0, "reward": "1"}],
)  # fmt: skip
def test_one_part_and_a_finite_number(wrong):
    with pytest.raises(ValueError, match="expected|finite"):
        ProcessReward(**{"reward": 1.0, **wrong})


def test_a_verdict_without_parts_is_recorded_as_before():
    from ajet.record.episode_codec import decode_verdict, encode_verdict

    assert encode_verdict(Verdict(1.0, True, "r")) == {"reward": 1.0, "success": True, "reason": "r"}
    part = ProcessReward(reward=1, text="a", step=2, tokens=(ReplySpan(2, 0, 1),))
    assert decode_verdict(encode_verdict(Verdict(0.0, process=(part,)))) == Verdict(0.0, process=(part,))
