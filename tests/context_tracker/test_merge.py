"""The prefix tree: what is entered comes out, common beginnings are stored once, and known links cost no comparison."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.context_tracker.merge import PrefixTree, Spot, find_continued, insert_calls
from ajet.schema.call import full_ids, prompt_ids
from tests.support.context_tracker_fixtures import episodes, make_call

pytestmark = pytest.mark.slow

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=10)


@settings(max_examples=150, deadline=None)
@given(SEQUENCES)
def test_what_is_entered_comes_out_and_equal_beginnings_are_one_place(sequences):
    tree = PrefixTree()
    spots = [tree.insert(np.asarray(sequence, np.int32)) for sequence in sequences]
    for sequence, spot in zip(sequences, spots, strict=True):
        assert tree.ids(spot).tolist() == sequence
        for stop in range(len(sequence) + 1):
            assert tree.ids(tree.at(spot, stop)).tolist() == sequence[:stop]
            assert tree.ids(spot, stop).tolist() == sequence[stop:]
    for left, one in zip(sequences, spots, strict=True):
        for right, other in zip(sequences, spots, strict=True):
            same = 0
            while same < min(len(left), len(right)) and left[same] == right[same]:
                same += 1
            assert tree.at(one, same) == tree.at(other, same)
            assert (one == other) == (left == right)


@settings(max_examples=150, deadline=None)
@given(episodes())
def test_calls_end_where_their_tokens_do_and_continue_the_longest_reply(calls):
    tree, spots = insert_calls(calls)
    fulls = [full_ids(calls, index).tolist() for index in range(len(calls))]
    for spot, full in zip(spots, fulls, strict=True):
        assert tree.ids(spot).tolist() == full
    members = [index for index, call in enumerate(calls) if call.response_ids.size]
    for index, spot in find_continued(calls, tree, spots, members).items():
        prompt = prompt_ids(calls, index).tolist()
        before = [len(fulls[other]) for other in members if prompt[: len(fulls[other])] == fulls[other]]
        assert (spot.stop if spot else 0) == max(before, default=0)


def test_linked_calls_are_not_compared_again(monkeypatch):
    """The longest call brings all its tokens; of the rest only what their links do not tell is looked at."""
    looked = []
    insert = PrefixTree.insert

    def counting(self, rest, after=Spot(0, 0), joined=None):
        looked.append(rest.size)
        return insert(self, rest, after, joined)

    monkeypatch.setattr(PrefixTree, "insert", counting)
    calls = [make_call(0, range(100), range(10))]
    for index in range(1, 50):
        size = calls[-1].prefix + calls[-1].suffix_ids.size + 10
        calls.append(make_call(index, range(20), range(10), parent=index - 1, prefix=size))
    insert_calls(calls)
    assert sum(looked) == 110 + 49 * 30
