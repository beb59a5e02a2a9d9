"""TaskOrder: every task once an epoch, whatever is interrupted, given back and restored."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader.order import TaskOrder


def tasks(count: int) -> list[Task]:
    return [Task(main_query=f"q{index}", task_id=f"t{index}") for index in range(count)]


@given(count=st.integers(1, 12), batch=st.integers(1, 20), seed=st.integers(0, 5), shuffle=st.booleans())
def test_each_epoch_has_each_task_once(count: int, batch: int, seed: int, shuffle: bool) -> None:
    order = TaskOrder(tasks(count), seed, shuffle, epochs=3)
    names: list[str] = []
    while taken := order.take(batch):
        names += [task.task_id for _, task in taken]
        order.done([number for number, _ in taken])
    assert len(names) == 3 * count
    for epoch in range(3):
        assert sorted(names[epoch * count : (epoch + 1) * count]) == sorted(t.task_id for t in tasks(count))


@settings(max_examples=200)
@given(
    count=st.integers(1, 9),
    moves=st.lists(st.tuples(st.sampled_from(["done", "back", "leave", "crash"]), st.integers(1, 6)), max_size=30),
)
def test_no_task_is_lost_or_doubled_over_interruptions(count: int, moves: list[tuple[str, int]]) -> None:
    order = TaskOrder(tasks(count), 1, epochs=2)
    finished: list[int] = []
    open_: set[int] = set()
    for move, amount in moves:
        if move == "crash":
            saved = json.loads(json.dumps(order.state()))
            order = TaskOrder(tasks(count), 1, epochs=2)
            order.restore(saved)
            waiting, open_ = sorted(open_), set()
            if waiting:
                first = [number for number, _ in order.take(len(waiting))]
                assert sorted(first) == first and set(waiting) <= set(first) | set(order.state()["unfinished"])
                open_ = set(first)
            continue
        numbers = [number for number, _ in order.take(amount)]
        assert not set(numbers) & (set(finished) | open_)
        if move == "done":
            order.done(numbers)
            finished += numbers
        elif move == "back":
            order.give_back(numbers)
        else:
            open_ |= set(numbers)
    order.done(open_)
    finished += open_
    while taken := order.take(3):
        order.done([number for number, _ in taken])
        finished += [number for number, _ in taken]
    assert Counter(finished) == Counter(range(2 * count))
    assert order.consumed == 2 * count


def test_restored_order_goes_on_as_the_uninterrupted_one() -> None:
    whole, part = TaskOrder(tasks(7), 3), TaskOrder(tasks(7), 3)
    expected = [whole.take(3) for _ in range(6)]
    for step in range(3):
        assert part.take(3) == expected[step]
        part.done([number for number, _ in expected[step]])
    resumed = TaskOrder(tasks(7), 3)
    resumed.restore(part.state())
    assert [resumed.take(3) for _ in range(3)] == expected[3:]


def test_unfinished_tasks_come_first() -> None:
    order = TaskOrder(tasks(10), 0)
    first = order.take(4)
    order.done([first[0][0], first[2][0]])
    again = TaskOrder(tasks(10), 0)
    again.restore(order.state())
    assert again.take(3)[:2] == [first[1], first[3]]


def test_the_order_depends_on_ids_not_on_rows() -> None:
    rows = tasks(20)
    assert [t for _, t in TaskOrder(rows, 5).take(20)] == [t for _, t in TaskOrder(rows[::-1], 5).take(20)]
    assert [t for _, t in TaskOrder(rows, 5).take(20)] != [t for _, t in TaskOrder(rows, 6).take(20)]
    assert [t for _, t in TaskOrder(rows, 5, shuffle=False).take(20)] == rows


def test_epochs_are_shuffled_differently() -> None:
    order = TaskOrder(tasks(30), 0)
    first, second = order.take(30), order.take(30)
    assert [t.task_id for _, t in first] != [t.task_id for _, t in second]
    assert (first[0][0], second[0][0], order.epoch) == (0, 30, 2)


def test_a_changed_data_set_is_refused() -> None:
    state = TaskOrder(tasks(5), 0).state()
    with pytest.raises(TaskError, match="the tasks changed"):
        TaskOrder(tasks(6), 0).restore(state)
    with pytest.raises(TaskError, match="the seed changed"):
        TaskOrder(tasks(5), 1).restore(state)


def test_the_same_ids_with_another_content_are_refused() -> None:
    rows = tasks(5)
    order = TaskOrder(rows, 0)
    rows[2].metadata["seen"] = True  # an agent's note is no change of the data set
    TaskOrder(tasks(5), 0).restore(order.state())
    for change in ({"main_query": "another"}, {"metadata": {"answer": 7}}, {"init_messages": [{"role": "user"}]}):
        others = tasks(5)
        others[2] = others[2].model_copy(update=change)
        with pytest.raises(TaskError, match="what the tasks say changed"):
            TaskOrder(others, 0).restore(order.state())
    earlier = {key: value for key, value in order.state().items() if key != "content"}
    TaskOrder(others, 0).restore(earlier)  # a checkpoint of a version that saved ids only


def test_no_tasks_is_an_error() -> None:
    with pytest.raises(TaskError, match="no tasks"):
        TaskOrder([], 0)


def test_only_taken_tasks_can_be_done() -> None:
    with pytest.raises(ValueError, match="not taken"):
        TaskOrder(tasks(3), 0).done([1])
