"""What a curriculum drew is drawn again from a run's record, and a position that does not agree is named."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ajet.config.schema import AjetConfig
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.task import Task
from ajet.task_reader import TaskOrder
from ajet.task_reader.order import CurriculumSampler
from ajet_proof.recorded.draws import NO_IDS, NOT_ALL, DrawChecker

TASKS = [Task(task_id=f"t{number:02}", main_query=str(number)) for number in range(24)]
BATCH, STEPS = 4, 6
"""Of epochs that have six tasks: they begin and end within steps."""
Record = tuple[dict[int, dict[str, Any]], dict[int, list[Group]], dict[str, Any]]


def settings(**more: Any) -> AjetConfig:
    curriculum = {"prefer": "hard", "share": 0.25, "floor": 0.02} | more
    return AjetConfig.model_validate({"seed": 5, "data": {"curriculum": curriculum}})


def group(task: Task, order: int, step: int, *rewards: float | None) -> Group:
    made = [
        Episode(f"{order}/{at}", task, at, step, "train", verdict=Verdict(reward, None))
        for at, reward in enumerate(rewards)
    ]
    return Group(task, order, made)


@pytest.fixture
def record() -> Record:
    """Rows, groups by step, and the last checkpoint: as the loop of `run.train` and `run.learn` makes them. In step 2
    one task is not played to its end, and is in step 3."""
    config = settings()
    drawn = CurriculumSampler([task.task_id for task in TASKS], config.data.curriculum, config.seed)
    tasks = TaskOrder(TASKS, seed=config.seed, curriculum=drawn)
    rows: dict[int, dict[str, Any]] = {}
    played: dict[int, list[Group]] = {}
    free, waiting = 0, []
    for step in range(1, STEPS + 1):
        taken = [*waiting, *range(free, free + BATCH - len(waiting))]
        free = max(taken) + 1
        met = {order: tasks.task(order) for order in taken}
        waiting = [taken[-1]] if step == 2 else []
        groups = [
            group(met[order], order, step, float(int(met[order].task_id[1:]) % 2), None, 0.25)
            for order in taken
            if order not in waiting
        ]
        tasks.record_results(groups, waiting)
        rows[step] = {"tasks": [each.order for each in groups], "waiting": waiting}
        played[step] = groups
    return rows, played, tasks.identity()


def held(record: Record, config: AjetConfig | None = None) -> tuple[list[str], DrawChecker]:
    rows, played, frontier = record
    draws = DrawChecker(config or settings(), frontier, rows)
    return [what for step in sorted(played) for what in draws.check_step(step, played[step])], draws


def test_an_honest_run_draws_what_it_drew(record):
    said, draws = held(record)
    assert not said and draws.held == 4 and not draws.unheld
    attempts = Counter(each.task.task_id for groups in record[1].values() for each in groups)
    assert max(attempts.values()) > 1, "what came of attempts bears on later draws"


def test_another_task_at_a_position_is_named(record):
    rows, played, frontier = record
    known = {each.task.task_id for groups in played.values() for each in groups}
    never = next(task for task in TASKS if task.task_id not in known)
    spoiled = played[4][1]
    drawn = spoiled.task.task_id
    played[4][1] = group(never, spoiled.order, 4, 1.0, None, 0.25)
    said, _ = held((rows, played, frontier))
    assert said[0] == f"position {spoiled.order} has task {never.task_id}, but the curriculum draws {drawn}"


def test_other_outcomes_settings_and_tasks_give_other_draws(record):
    rows, played, frontier = record
    first = len({each.order for each in played[1]})
    for config in (settings(prefer="easy"), settings(floor=1.0), settings(share=0.5)):
        said, _ = held(record, config)
        assert said and all(int(what.split()[1]) >= first for what in said if config.data.curriculum.share == 0.25)
    fewer = {**frontier, "curriculum": {**frontier["curriculum"], "ids": frontier["curriculum"]["ids"][:-1]}}
    more = {**frontier, "curriculum": {**frontier["curriculum"], "ids": [*frontier["curriculum"]["ids"], "t99"]}}
    assert any(held((rows, played, each))[0] for each in (fewer, more))
    played[1] = [group(each.task, each.order, 1, 0.5, 0.5) for each in played[1]]
    assert held((rows, played, frontier))[0], "the shares of the second epoch rest on them"


def test_what_cannot_be_drawn_again_is_counted(record):
    rows, played, frontier = record
    without = {name: value for name, value in frontier["curriculum"].items() if name != "ids"}
    for earlier in ({}, {**frontier, "curriculum": without}):
        said, draws = held((rows, played, earlier))
        assert not said and draws.held == 0 and draws.unheld == {NO_IDS: 1}
    del played[2]
    said, draws = held((rows, played, frontier))
    assert not said and draws.held == 1 and draws.unheld == {NOT_ALL: 3}
    rows[2] = {"tasks": [], "discarded": []}
    assert held((rows, played, frontier))[1].held == 4, "a step that recorded nothing is not missed"
