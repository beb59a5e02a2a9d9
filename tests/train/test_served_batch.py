"""When the episodes that clients brought are a batch, and which of them are trained on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ajet.algorithm import build_discarded_outcomes
from ajet.commands.serve import list_held_out
from ajet.config import Experiment
from ajet.schema.episode import Group, Outcome
from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.train.accounting import check_tokens
from ajet.train.sources.served_batch import ServedBatch
from tests.support import record_fixtures

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("most", "taken"), [(None, True), (5, True), (4, False), (0, False)])
def test_a_group_that_is_too_old_is_recorded_and_not_trained_on(most, taken):
    """Its calls were sampled by version 3; the policy is at 8."""
    episodes = [record_fixtures.episode(f"e{repeat}", repeat=repeat) for repeat in range(2)]
    for episode in episodes:
        episode.untrained.clear()
    group = Group(episodes[0].task, 0, episodes)
    batch = ServedBatch(9)
    batch.add(group, 8, most)
    assert (batch.groups, batch.stale, batch.unscored) == (([group], [], []) if taken else ([], [group], []))
    outcomes = build_discarded_outcomes(batch.stale, "stale")
    if taken:
        assert outcomes == {}
        return
    assert outcomes == {e.uuid: Outcome(None, None, {"stale": e.sampled_tokens}, "stale") for e in episodes}
    check_tokens(episodes, outcomes, {})


@pytest.mark.parametrize(
    ("by", "most"), [("groups", ["a", "a"]), ("tasks", ["a", "a", "b"]), ("episodes", ["a", "a", "b", "b"])]
)
def test_a_batch_is_whole_by_what_serve_says(by, most):
    """Groups of one and of two scored episodes, two by two; two groups, two tasks, or two times two episodes."""
    settings = Experiment.from_dict(
        {"ajet": {"data": {"train_batch_size": 2}, "rollout": {"num_repeat": 2}, "serve": {"batch_by": by}}},
        base=Path.cwd(),
    ).ajet
    batch = ServedBatch(1)
    for number, name in enumerate(("a", "a", "b", "b")):
        assert not batch.is_complete(settings)
        task = record_fixtures.episode().task.model_copy(update={"task_id": name})
        batch.add(Group(task, number, [record_fixtures.episode(f"{number}")]), 3)
        if batch.is_complete(settings):
            break
    assert [group.task.task_id for group in batch.groups] == most


def test_a_batch_is_whole_when_its_time_is_over_and_something_is_there(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("ajet.train.sources.served_batch.time.monotonic", lambda: now[0])
    tree = {"ajet": {"data": {"train_batch_size": 2}, "serve": {"batch_seconds": 30}}}
    settings, batch = Experiment.from_dict(tree, base=Path.cwd()).ajet, ServedBatch(1)
    now[0] += 1000
    assert not batch.is_complete(settings) and batch.seconds_left(30) is None, "nothing can be trained on"
    batch.add(Group(record_fixtures.episode().task, 0, [record_fixtures.episode()]), 3)
    now[0] += 29
    assert not batch.is_complete(settings) and batch.seconds_left(30) == 1.0
    now[0] += 1
    assert batch.is_complete(settings) and batch.seconds_left(None) is None


def test_a_server_whose_held_out_tasks_cannot_be_read_serves_the_others():
    """A reader's split that nobody set may not be there."""

    def tasks(split):
        raise TaskError(f"There is no {split} split.")

    experiment, backbone = Experiment.from_dict({"ajet": {}}, base=Path.cwd()), SimpleNamespace(tokenizer=None)
    reader = SimpleNamespace(has=lambda split: True, tasks=tasks)
    assert list_held_out(experiment, reader, backbone) == ()
    reader.tasks = lambda split: [Task(main_query=split)]
    assert [task.main_query for task in list_held_out(experiment, reader, backbone)] == ["validation"]
