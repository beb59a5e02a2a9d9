"""A curriculum: what it draws follows from the seed and from what was solved, and goes on from a checkpoint."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from ajet.config.schema.data import CurriculumConfig as Settings
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader import TaskOrder
from ajet.task_reader.order import CurriculumSampler

TASKS = [Task(task_id=f"t{number:02}", main_query=str(number)) for number in range(24)]


def order(tasks=TASKS, seed=3, **settings):
    drawn = CurriculumSampler([task.task_id for task in tasks], Settings(**{"prefer": "uncertain", **settings}), seed)
    return TaskOrder(tasks, seed=seed, curriculum=drawn)


def played(task, *outcomes):
    """A group whose attempts ended so: True, False, a reward, or None for no score."""
    made = []
    for number, outcome in enumerate(outcomes):
        told = outcome if isinstance(outcome, bool) else None
        reward = None if outcome is None else float(outcome)
        made.append(Episode(f"{task.task_id}/{number}", task, number, 1, "train", verdict=Verdict(reward, told)))
    return Group(task, 0, made)


def epoch(tasks, number):
    return [tasks.task(number * len(tasks) + place).task_id for place in range(len(tasks))]


def test_an_epoch_has_its_share_of_the_tasks_each_once():
    tasks = order(share=0.3)
    assert len(tasks) == 8
    for number in range(3):
        assert len(set(epoch(tasks, number))) == 8
    assert epoch(order(share=0.3), 0) == epoch(order(TASKS[::-1], share=0.3), 0), "rows' places do not matter"
    assert epoch(order(share=0.3), 0) != epoch(order(seed=4, share=0.3), 0)


@pytest.mark.parametrize(("prefer", "first"), [("uncertain", "half"), ("easy", "all"), ("hard", "none")])
def test_the_preferred_tasks_come_more_often(prefer, first):
    kinds = {"half": TASKS[:8], "all": TASKS[8:16], "none": TASKS[16:]}
    outcomes = {"half": (True, False) * 8, "all": (1.0,) * 16, "none": (False,) * 15 + (0.0,)}
    tasks = order(prefer=prefer, share=1 / 3, floor=0.02)
    tasks.record_results((played(task, None, *outcomes[kind]) for kind, some in kinds.items() for task in some), [])
    kind_of = {task.task_id: kind for kind, some in kinds.items() for task in some}
    drawn = Counter(kind_of[each] for number in range(40) for each in epoch(tasks, number))
    assert drawn.most_common(1)[0][0] == first and drawn[first] > 320 * 0.5, drawn
    assert len(drawn) == 3, "none is never drawn"


def test_an_epoch_that_has_begun_does_not_change():
    tasks = order()
    tasks.task(0)
    before = order()
    for each in (tasks, before):
        each.record_results([played(task, *(True,) * 40) for task in TASKS[:12]], [])
    assert epoch(tasks, 0) == epoch(order(), 0) != epoch(before, 0)
    assert epoch(tasks, 1) == epoch(before, 1)


def test_it_goes_on_from_a_checkpoint():
    tasks = order()
    epoch(tasks, 0)
    tasks.record_results([played(task, number % 3 == 0, 0.25) for number, task in enumerate(TASKS)], [0])
    tasks.task(len(tasks) + 1)
    tasks.record_results([played(task, False) for task in TASKS[:5]], [0, len(tasks)])
    again = order()
    again.restore(json.loads(json.dumps(tasks.identity())))
    for number in range(4):
        assert epoch(again, number) == epoch(tasks, number)
    with pytest.raises(TaskError, match="the tasks changed"):
        order(TASKS[1:]).restore(tasks.identity())


def test_a_position_of_an_old_epoch_keeps_its_task():
    """A batch of many short epochs, of which one attempt was not finished and is played in the next step."""
    tasks = order(share=0.05)
    before = [tasks.task(place).task_id for place in range(20)]
    tasks.record_results([played(task, True) for task in TASKS], [3])
    tasks.task(20)
    assert tasks.task(3).task_id == before[3]
    again = order(share=0.05)
    again.restore(json.loads(json.dumps(tasks.identity())))
    assert again.task(3).task_id == before[3]
    assert sorted(tasks.identity()["curriculum"]["epochs"]) == ["1", "10", "9"], "the others are over"
