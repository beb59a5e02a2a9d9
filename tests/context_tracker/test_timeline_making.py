"""The tracker's promises, as properties over random episodes, and the cases one meets, by hand."""

import pickle
import random
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.context_tracker import choose, cut_over_length, snaps, timelines
from ajet.schema.call import VersionRun, full_ids, prompt_ids
from tests.support.context_tracker_fixtures import episodes, make_call, shuffled

settings.register_profile("tracker", max_examples=100, deadline=None)
settings.load_profile("tracker")


def trainable(call):
    return call.trained and call.finish not in ("aborted", "error") and call.response_ids.size > 0


def facts(timeline):
    """Everything of a timeline but the numbers of its calls."""
    spans = tuple((span.start, span.stop) for span in timeline.spans)
    arrays = (timeline.ids, timeline.mask, timeline.logprobs, timeline.logprobs_unit, timeline.versions)
    return (timeline.agent, timeline.target, spans, *(array.tobytes() for array in arrays))


@pytest.mark.slow
@given(episodes(), st.booleans())
def test_every_sampled_token_is_trained_once_or_counted(calls, ignore_tools):
    found, untrained = timelines(calls, ignore_tools=ignore_tools)
    sampled = sum(call.response_ids.size for call in calls)
    assert sampled == sum(timeline.sampled for timeline in found) + sum(untrained.values())
    trained = Counter(span.call for timeline in found for span in timeline.spans)
    assert trained == Counter(call.index for call in calls if trainable(call))
    assert set(untrained) <= {"aborted_call", "not_trainable"}


@pytest.mark.slow
@given(episodes(), st.booleans())
def test_a_timeline_is_the_exact_context_and_reply_of_its_calls(calls, ignore_tools):
    for timeline in timelines(calls, ignore_tools=ignore_tools)[0]:
        assert timeline.ids.tolist() == full_ids(calls, timeline.leaf).tolist()
        size = timeline.ids.size
        assert {size} == {
            array.size for array in (timeline.mask, timeline.logprobs, timeline.logprobs_unit, timeline.versions)
        }
        covered = np.zeros(size, bool)
        for span in timeline.spans:
            call = calls[span.call]
            at = slice(span.start, span.stop)
            assert not covered[at].any()
            covered[at] = True
            assert timeline.ids[: span.start].tolist() == prompt_ids(calls, span.call).tolist()
            assert timeline.ids[at].tolist() == call.response_ids.tolist()
            assert timeline.logprobs[at].tolist() == call.logprobs.tolist()
            assert timeline.logprobs_unit[at].tolist() == call.logprobs_unit.tolist()
            assert set(timeline.versions[at].tolist()) == {call.versions[0].low}
            assert ignore_tools or call.tools == calls[timeline.leaf].tools
        assert timeline.mask.tolist() == covered.tolist()
        assert not timeline.logprobs[~covered].any() and not timeline.logprobs_unit[~covered].any()
        assert (timeline.versions[~covered] == -1).all()


@pytest.mark.slow
@given(episodes(), st.randoms(use_true_random=False), st.booleans())
def test_timelines_do_not_depend_on_the_order_of_calls(calls, rng, ignore_tools):
    order = list(range(len(calls)))
    rng.shuffle(order)
    here, reasons = timelines(calls, ignore_tools=ignore_tools)
    there, same = timelines(shuffled(calls, order), ignore_tools=ignore_tools)
    assert Counter(map(facts, here)) == Counter(map(facts, there))
    assert reasons == same


@pytest.mark.slow
@given(episodes())
def test_as_much_is_merged_as_the_tokens_allow(calls):
    """Against the plain all-pairs search: a call continues the longest reply that its prompt begins with."""
    mine = [i for i, call in enumerate(calls) if trainable(call)]
    fulls = {i: tuple(full_ids(calls, i).tolist()) for i in mine}
    prompts = {i: tuple(prompt_ids(calls, i).tolist()) for i in mine}
    continues = Counter()
    for i in mine:
        before = [full for full in fulls.values() if prompts[i][: len(full)] == full]
        if before:
            continues[max(before, key=len)] += 1
    merged = sum(min(count, continues[full]) for full, count in Counter(fulls.values()).items())
    assert len(timelines(calls)[0]) == len(mine) - merged


@pytest.mark.slow
@given(episodes(), st.integers(1, 12), st.integers(0, 3), st.integers(0, 5))
def test_limits_count_what_they_leave_out(calls, longest, most, seed):
    found, _ = timelines(calls)
    before = sum(timeline.sampled for timeline in found)
    cut, too_long = cut_over_length(found, longest)
    assert all(timeline.ids.size <= longest and timeline.sampled for timeline in cut)
    assert all(timeline.sampled == sum(span.stop - span.start for span in timeline.spans) for timeline in cut)
    kept, dropped = choose(cut, most, seed=seed, episode="e")
    assert len(kept) == min(most, len(cut))
    assert before == sum(timeline.sampled for timeline in kept) + sum(too_long.values()) + sum(dropped.values())
    assert [timeline.leaf for timeline in kept] == [
        timeline.leaf for timeline in choose(cut, most, seed=seed, episode="e")[0]
    ]


@pytest.mark.slow
@given(episodes())
def test_timelines_are_the_same_where_they_lie_in_large_pieces_of_memory(calls):
    expected, _ = timelines(calls)
    with patch.multiple("ajet.context_tracker.merge", _LARGE=1, _PIECE=8):
        found, _ = timelines(calls)
    assert list(map(facts, found)) == list(map(facts, expected))
    for timeline in found:
        assert timeline.ids.tolist() == full_ids(calls, timeline.leaf).tolist()


def test_large_pieces_of_memory_begin_where_a_huge_page_does():
    calls = [make_call(i, [i] * 400, [1] * 100) for i in range(600)]  # 300,000 tokens
    first = timelines(calls)[0][0]
    assert first.logprobs.ctypes.data % 2**21 == 0
    assert len(pickle.dumps(first)) < 14_000, "sent elsewhere alone, without the memory that it shares"


def test_turns_of_one_conversation_become_one_timeline():
    calls = [
        make_call(0, [1, 2], [3, 4]),
        make_call(1, [5], [6], parent=0, prefix=4),
        make_call(2, [7], [8, 9], parent=1, prefix=6),
    ]
    (timeline,), untrained = timelines(calls)
    assert timeline.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert timeline.mask.tolist() == [False, False, True, True, False, True, False, True, True]
    assert timeline.leaf == 2 and not untrained


def test_unlinked_turns_merge_by_their_tokens():
    calls = [make_call(0, [1, 2], [3, 4]), make_call(1, [1, 2, 3, 4, 5], [6])]
    (timeline,), _ = timelines(calls)
    assert timeline.mask.tolist() == [False, False, True, True, False, True]


def test_of_two_continuations_the_longer_takes_the_shared_reply():
    calls = [
        make_call(0, [1], [2]),
        make_call(1, [3], [4], parent=0, prefix=2),
        make_call(2, [5], [6, 7], parent=0, prefix=2),
    ]
    found, _ = timelines(calls)
    assert {timeline.leaf: timeline.mask.tolist() for timeline in found} == {
        1: [False, False, False, True],
        2: [False, True, False, True, True],
    }


def test_the_same_reply_sampled_twice_is_trained_twice():
    calls = [
        make_call(0, [1], [2], logprobs=[-0.25]),
        make_call(1, [1], [2], logprobs=[-0.75]),
        make_call(2, [1, 2, 3], [4]),
    ]
    found, _ = timelines(calls)
    assert sorted(timeline.ids.tolist() for timeline in found) == [[1, 2], [1, 2, 3, 4]]
    assert sum(timeline.sampled for timeline in found) == 3


def test_a_frozen_agent_between_is_context():
    calls = [
        make_call(0, [1], [2]),
        make_call(1, [3], [4], parent=0, prefix=2, agent="user", trained=False),
        make_call(2, [5], [6], parent=1, prefix=4),
    ]
    (timeline,), untrained = timelines(calls)
    assert timeline.mask.tolist() == [False, True, False, False, False, True]
    assert untrained == {"not_trainable": 1}


def test_versions_within_one_reply():
    call = make_call(0, [1], [2, 3, 4])
    call.versions = (VersionRun(0, 5, 5), VersionRun(2, 5, 6))
    call_after = make_call(1, [7], [8], parent=0, prefix=4, version=6)
    (timeline,), _ = timelines([call, call_after])
    assert timeline.versions.tolist() == [-1, 5, 5, 5, -1, 6]


def test_a_long_unlinked_conversation_whose_thoughts_are_stripped_stays_fast():
    """Each turn forks (its own thought is not in the next prompt): hundreds of branches off one trunk."""
    rng = np.random.default_rng(0)
    trunk = rng.integers(0, 1000, 30_000)
    calls = [make_call(i, trunk[: 100 * (i + 1)], rng.integers(0, 1000, 20)) for i in range(300)]
    random.Random(0).shuffle(calls)
    calls = shuffled(calls, range(300))
    assert len(timelines(calls)[0]) == 300


def test_snaps_say_where_and_why():
    calls = [
        make_call(0, [1, 2], [3]),
        make_call(1, [9], [4], parent=0, prefix=2, fork="template"),
        make_call(2, [7], [8], agent="critic"),
    ]
    (snap,) = snaps(calls)
    assert (snap.call, snap.before, snap.reason, snap.shared, snap.prompt) == (1, 0, "template", 2, 3)
    assert "template" in str(snap)


def test_the_choice_among_timelines_follows_seed_and_episode():
    found, _ = timelines([make_call(i, [i], [1]) for i in range(40)])

    def leaves(seed, episode):
        return [timeline.leaf for timeline in choose(found, 5, seed=seed, episode=episode)[0]]

    assert leaves(1, "a") == leaves(1, "a")
    assert leaves(1, "a") != leaves(2, "a")
    assert leaves(1, "a") != leaves(1, "b")


@pytest.mark.parametrize("finish", ["aborted", "error"])
def test_a_reply_cut_off_by_a_failure_is_counted(finish):
    found, untrained = timelines([make_call(0, [1], [2, 3], finish=finish)])
    assert not found and untrained == {"aborted_call": 2}
