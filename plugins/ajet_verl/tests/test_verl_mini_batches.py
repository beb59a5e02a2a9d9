"""Rows in the order in which verl cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_verl.trainer.mini_batches import deal_rows

pytestmark = pytest.mark.verl

PARTS = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def cut(order, ranks, steps):
    """As verl's dispatch and `train_mini_batch` do: `[step][rank]` rows."""
    assert len(order) % (ranks * steps) == 0
    size = len(order) // (ranks * steps)
    chunks = [order[rank * steps * size : (rank + 1) * steps * size] for rank in range(ranks)]
    return [[chunk[step * size : (step + 1) * size] for chunk in chunks] for step in range(steps)]


@given(PARTS, st.integers(1, 5), st.integers(1, 3), st.data())
def test_each_optimizer_step_has_its_rows_and_no_other(sizes, ranks, multiple, data):
    parts, rows = [], 0
    for size in sizes:
        parts.append(list(range(rows, rows + size)))
        rows += size
    lengths = data.draw(st.lists(st.integers(1, 9000), min_size=rows, max_size=rows))
    order = deal_rows(parts, lengths, ranks=ranks, multiple=multiple)
    cuts = cut(order, ranks, len(parts))
    for part, hands in zip(parts, cuts, strict=True):
        assert sorted(row for hand in hands for row in hand if row is not None) == part
        assert all(len(hand) % multiple == 0 and hand for hand in hands)
    least = max(-(-len(part) // ranks) for part in parts)
    assert len(cuts[0][0]) < least + multiple, "no more padding than equal numbers need"


def test_ranks_get_equal_work():
    lengths = [100, 90, 80, 70, 40, 30, 20, 10]
    hands = cut(deal_rows([list(range(8))], lengths, ranks=2), 2, 1)[0]
    work = [sum(lengths[row] for row in hand) for hand in hands]
    assert max(work) - min(work) <= 20


@pytest.mark.slow
@given(PARTS, st.integers(1, 4), st.data())
def test_rows_that_share_tokens_stay_together(sizes, ranks, data):
    """Each rank's rows are neighbours in the order of their kin, and all of a part are there."""
    rows = sum(sizes)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    parts = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    kin = data.draw(st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows))
    lengths = data.draw(st.lists(st.integers(1, 9000), min_size=rows, max_size=rows))
    for part, hands in zip(parts, cut(deal_rows(parts, lengths, ranks=ranks, kin=kin), ranks, len(parts)), strict=True):
        found = [row for hand in hands for row in hand if row is not None]
        assert found == sorted(part, key=lambda row: (kin[row], row))


def test_kin_are_split_only_for_equal_work():
    hands = cut(deal_rows([list(range(8))], [50] * 8, ranks=2, kin=list("abababab")), 2, 1)[0]
    assert hands == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert cut(deal_rows([[0, 1, 2]], [50, 50, 100], ranks=2, kin=list("aab")), 2, 1)[0] == [[0, 1], [2, None]]


def test_nothing_to_deal():
    assert deal_rows([], [], ranks=3) == []
