"""Rows hold every sample exactly, shared tokens once, and nothing attends where its sample does not reach."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.context_tracker import pack, packing, tree_mask
from ajet.schema.batch import Sample
from ajet.schema.episode import Timeline


def make_sample(ids, mask, group=0):
    size = len(ids)
    zeros = np.zeros(size, np.float32)
    timeline = Timeline(
        0, "a", "a", np.asarray(ids, np.int32), np.asarray(mask, bool), zeros, zeros, np.full(size, -1, np.int32), ()
    )
    return Sample(timeline, "e", group, zeros, 1.0)


@st.composite
def batches(draw):
    made = []
    for _ in range(draw(st.integers(0, 8))):
        ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
        mask = [False, *draw(st.lists(st.booleans(), min_size=len(ids) - 1, max_size=len(ids) - 1))]
        made.append(make_sample(ids, mask, group=draw(st.integers(0, 2))))
    return made


def path(row, index):
    """The row's indices that the token at `index` attends to, which are its sample's tokens up to it."""
    tree = next(tree for tree in row.trees if tree.start <= index < tree.stop)
    return tree.start + np.flatnonzero(tree_mask(tree)[index - tree.start])


def in_preorder(tree):
    """Each segment continues the one before it, or what that one continues."""
    path = []
    for segment, parent in enumerate(tree.parents.tolist()):
        while path and path[-1] != parent:
            path.pop()
        if not path and parent >= 0:
            return False
        path.append(segment)
    return bool((np.diff(tree.segment_of) >= 0).all())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(batches(), st.integers(1, 20), st.booleans())
def test_rows_hold_the_samples_exactly(samples, budget, share):
    rows = pack(samples, budget, share_prefixes=share)
    seen = Counter()
    for row in rows:
        assert row.ids.size == row.positions.size == sum(tree.stop - tree.start for tree in row.trees)
        assert row.ids.size <= budget or len(row.trees) == 1
        stops = [0, *(tree.stop for tree in row.trees)]
        assert [tree.start for tree in row.trees] == stops[:-1]
        for tree in row.trees:
            assert tree.segment_of.size == tree.stop - tree.start
            assert set(tree.segment_of.tolist()) == set(range(tree.parents.size))
            assert in_preorder(tree)
        targets = row.targets
        assert (np.diff(targets.source) >= 0).all()
        for source, token, sample, offset in zip(
            targets.source.tolist(),
            targets.token.tolist(),
            targets.sample.tolist(),
            targets.offset.tolist(),
            strict=True,
        ):
            ids = samples[sample].timeline.ids
            attended = path(row, source)
            assert row.ids[attended].tolist() == ids[:offset].tolist()
            assert row.positions[attended].tolist() == list(range(offset))
            assert token == ids[offset]
            seen[sample, offset] += 1
    expected = {
        (index, offset) for index, sample in enumerate(samples) for offset in np.flatnonzero(sample.timeline.mask)
    }
    assert seen == Counter(dict.fromkeys(expected, 1))


@settings(max_examples=100, deadline=None)
@given(batches())
def test_with_room_a_group_stores_each_distinct_prefix_once(samples):
    rows = pack(samples, 10_000)
    of_groups = {
        (sample.group, tuple(sample.timeline.ids[: stop + 1].tolist()))
        for sample in samples
        for stop in range(sample.timeline.ids.size)
    }
    distinct = {prefix for _, prefix in of_groups}
    assert len(distinct) <= sum(row.ids.size for row in rows) <= len(of_groups)
    for row in rows:
        for tree in row.trees:
            paths = [tuple(row.ids[path(row, index)].tolist()) for index in range(tree.start, tree.stop)]
            assert len(set(paths)) == len(paths)


@settings(max_examples=50, deadline=None)
@given(batches(), st.integers(1, 20))
def test_unshared_rows_are_the_samples_side_by_side(samples, budget):
    rows = pack(samples, budget, share_prefixes=False)
    assert sum(row.ids.size for row in rows) == sum(sample.timeline.ids.size for sample in samples)
    assert sum(len(row.trees) for row in rows) == len(samples)


def test_one_prompt_with_two_replies():
    mask = [False, False, True, True]
    (row,) = pack([make_sample([5, 6, 7, 8], mask), make_sample([5, 6, 9, 8], mask)], 100)
    assert row.ids.tolist() == [5, 6, 7, 8, 9, 8]
    assert row.positions.tolist() == [0, 1, 2, 3, 2, 3]
    (tree,) = row.trees
    assert tree.segment_of.tolist() == [0, 0, 1, 1, 2, 2]
    assert tree.parents.tolist() == [-1, 0, 0]
    assert row.targets.source.tolist() == [1, 1, 2, 4]
    assert row.targets.token.tolist() == [7, 9, 8, 8]


def test_a_group_larger_than_the_budget_is_split_between_samples():
    prompt = [1] * 6
    samples = [make_sample([*prompt, 2 + i], [False] * 6 + [True]) for i in range(6)]
    rows = pack(samples, 9)
    assert [row.ids.size for row in rows] == [9, 9]


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(3, 14))
def test_a_group_is_cut_where_its_parts_repeat_least(samples, budget):
    """Of all ways to cut its samples, in their order, into trees that fit."""
    samples = [make_sample(each.timeline.ids, each.timeline.mask) for each in samples]
    ordered = sorted(tuple(each.timeline.ids.tolist()) for each in samples)

    def tokens(part):
        return len({ids[: stop + 1] for ids in part for stop in range(len(ids))})

    least = [0]
    for stop in range(1, len(ordered) + 1):
        parts = [(start, ordered[start:stop]) for start in range(stop)]
        fit = [(start, tokens(part)) for start, part in parts if len(part) == 1 or tokens(part) <= budget]
        least.append(min(least[start] + size for start, size in fit))
    assert sum(row.ids.size for row in pack(samples, budget)) == least[-1]


def test_episodes_of_one_prompt_are_cut_apart_between_them():
    """Two whole episodes a pass; one filled up with the third's beginning would have that computed twice."""
    prompt, mask = [1] * 10, [False] * 50 + [True] * 5
    samples = [
        make_sample([*prompt, *[10 + episode] * 40, *[100 + branch] * 5], mask)
        for episode in range(4)
        for branch in range(4)
    ]
    assert [row.ids.size for row in pack(samples, 180)] == [10 + 2 * (40 + 4 * 5)] * 2


def sized(shared, own, groups):
    """Samples of `groups` groups, two each: `shared` tokens in all of them, `own` of the group's, one of the reply."""
    return [
        make_sample([*range(shared), *[1000 + group] * own, 2000 + reply], [False] * (shared + own) + [True], group)
        for group in range(groups)
        for reply in range(2)
    ]


@pytest.mark.parametrize(
    ("shared", "own", "groups", "trees"),
    [
        (50, 30, 12, [434]),  # one system prompt for all: 50 + 12 * 32
        (50, 30, 20, [626, 114]),  # a tree stays small enough for one dense mask
        (4, 200, 3, [206] * 3),  # less than what a larger mask costs
        (300, 30, 20, [940]),  # much: segment by segment
        (300, 30, 20, [492, 492, 492, 364]),  # and within the budget
    ],
)
def test_groups_that_begin_alike_share_a_tree_where_it_pays(shared, own, groups, trees):
    rows = pack(sized(shared, own, groups), 500 if trees[0] == 492 else 4096)
    assert sorted((tree.stop - tree.start for row in rows for tree in row.trees), reverse=True) == trees


def test_many_groups_are_joined_in_time_that_grows_with_their_number(monkeypatch):
    compared = Counter()
    shared = packing.count_shared

    def counted(*lines):
        compared["pairs"] += 1
        return shared(*lines)

    monkeypatch.setattr(packing, "count_shared", counted)
    (row,) = pack(sized(300, 3, 100), 10_000)
    assert row.ids.size == 300 + 100 * (3 + 2) and compared["pairs"] <= 5 * 200


def test_a_first_token_cannot_be_a_target():
    with pytest.raises(ValueError, match="first token"):
        pack([make_sample([1, 2], [True, False])], 10)
