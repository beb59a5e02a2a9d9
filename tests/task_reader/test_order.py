"""TaskOrder: every task once an epoch, in an order that a checkpoint can be held to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.config import AjetConfig
from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader.order import TaskOrder


def tasks(count: int) -> list[Task]:
    return [Task(main_query=f"q{index}", task_id=f"t{index}") for index in range(count)]


def names(order: TaskOrder, start: int, stop: int) -> list[str]:
    return [order.task(position).task_id for position in range(start, stop)]


@given(count=st.integers(1, 12), seed=st.integers(0, 5), shuffle=st.booleans())
def test_each_epoch_has_each_task_once(count: int, seed: int, shuffle: bool) -> None:
    order = TaskOrder(tasks(count), seed, shuffle)
    assert len(order) == count
    for epoch in range(3):
        assert sorted(names(order, epoch * count, (epoch + 1) * count)) == sorted(t.task_id for t in tasks(count))


@given(count=st.integers(1, 40), batch=st.integers(1, 40), epochs=st.integers(1, 9))
def test_a_run_sees_each_task_once_an_epoch(count: int, batch: int, epochs: int) -> None:
    """However batches lie across the epochs' borders: its last step alone goes beyond the last epoch."""
    settings = AjetConfig(data={"train_batch_size": batch}, trainer_common={"total_epochs": epochs})
    steps = settings.count_steps(count)
    assert (steps - 1) * batch < epochs * count <= steps * batch
    played = names(TaskOrder(tasks(count), 0), 0, epochs * count)
    assert {played.count(task.task_id) for task in tasks(count)} == {epochs}


def test_the_order_depends_on_ids_not_on_rows() -> None:
    rows = tasks(20)
    assert names(TaskOrder(rows, 5), 0, 20) == names(TaskOrder(rows[::-1], 5), 0, 20)
    assert names(TaskOrder(rows, 5), 0, 20) != names(TaskOrder(rows, 6), 0, 20)
    assert names(TaskOrder(rows, 5, shuffle=False), 0, 20) == [task.task_id for task in rows]


def test_epochs_are_shuffled_differently_and_asked_for_in_any_order() -> None:
    order = TaskOrder(tasks(30), 0)
    first, second = names(order, 0, 30), names(order, 30, 60)
    assert first != second and names(order, 0, 30) == first


def test_a_changed_data_set_is_refused() -> None:
    saved = TaskOrder(tasks(5), 0).identity()
    TaskOrder(tasks(5), 0).require_same(saved)
    with pytest.raises(TaskError, match="the tasks changed") as refused:
        TaskOrder(tasks(6), 0).require_same(saved)
    assert refused.value.expected == "5 tasks as before, found 6" and "--fresh" in refused.value.do
    with pytest.raises(TaskError, match="the seed changed"):
        TaskOrder(tasks(5), 1).require_same(saved)
    with pytest.raises(TaskError, match="data.shuffle changed"):
        TaskOrder(tasks(5), 0, shuffle=False).require_same(saved)


def test_the_same_ids_with_another_content_are_refused() -> None:
    rows = tasks(5)
    order = TaskOrder(rows, 0)
    rows[2].metadata["seen"] = True  # an agent's note is no change of the data set
    TaskOrder(tasks(5), 0).require_same(order.identity())
    for change in ({"main_query": "another"}, {"metadata": {"answer": 7}}, {"init_messages": [{"role": "user"}]}):
        others = tasks(5)
        others[2] = others[2].model_copy(update=change)
        with pytest.raises(TaskError, match="the content of the tasks changed"):
            TaskOrder(others, 0).require_same(order.identity())


def test_no_tasks_is_an_error() -> None:
    with pytest.raises(TaskError, match="no tasks"):
        TaskOrder([], 0)
