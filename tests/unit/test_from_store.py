"""The trainer's side of a store that samplers fill: which groups a step gets, and what it is told of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.run import from_store as module
from ajet.run.from_store import FromStore
from ajet.schema.call import VersionRun
from ajet.schema.task import Task
from ajet.store import Kept, SharedStore, open_shared
from tests.local_fixtures import config_of
from tests.record_fixtures import episode

TASKS: Any = SimpleNamespace(task=lambda order: Task(main_query="?", task_id=f"task-{order}"))


class Trainer:
    """A source over a store of its own, whose steps are only noted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        config = config_of(**{"data__train_batch_size": 1, "rollout__num_repeat": 2, **settings})
        self.store: SharedStore = open_shared(f"sqlite:{path}/store.db", rolls=True, max_attempts=2)
        self.source = FromStore(self.store)  # type: ignore[arg-type]
        self.source._store, self.source._ahead = self.store, 8
        self.backbone = SimpleNamespace(version=0)
        run = SimpleNamespace(status=SimpleNamespace(set=lambda **more: None), run_id="run")
        self.training: Any = SimpleNamespace(
            parts=SimpleNamespace(experiment=SimpleNamespace(ajet=config), backbone=self.backbone), run=run, step=0
        )
        self.steps: list[dict[str, Any]] = []
        monkeypatch.setattr(module, "learn", self._learn)

    def play(self, order: int, *, version: int = 0) -> None:
        """By a sampler."""
        (lease,) = self.store.lease(1)
        assert lease.order == order
        for repeat in (0, 1):
            whole = episode(f"{order}-{repeat}", order=order, repeat=repeat)
            calls = [replace(call, versions=(VersionRun(0, version, version),)) for call in whole.calls]
            self.store.put(lease, Kept(replace(whole, calls=calls)))
        self.store.close(lease)

    def step(self) -> dict[str, Any]:
        """What `learn` got."""
        self.source.step(self.training, TASKS, SimpleNamespace(held=nullcontext))
        return self.steps[-1]

    def _learn(self, training: Any, groups: Any, interrupts: Any, **more: Any) -> None:
        self.steps.append({"groups": [group.order for group in groups], **more})
        training.step += 1
        self.backbone.version += 1
        self.store.use([group.order for group in groups], training.step)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def opened(**settings: Any) -> Trainer:
        made.append(Trainer(tmp_path, monkeypatch, **settings))
        return made[-1]

    yield opened
    for each in made:
        each.store.disconnect()


def test_a_position_that_is_given_up_is_said_once_and_stands_in_each_row(trainer: Callable[..., Trainer]) -> None:
    said: list[str] = []
    sink = module.logger.add(lambda message: said.append(str(message)), level="WARNING")
    made = trainer()
    try:
        for _ in range(2):
            (lease,) = made.store.lease(1)
            made.store.fail(lease, "the tool's server is down" + "!" * 1000)
        made.play(1)
        first = made.step()
        made.play(2)
        second = made.step()
    finally:
        module.logger.remove(sink)
    assert (first["groups"], second["groups"]) == ([1], [2])
    assert list(first["given_up"]) == list(second["given_up"]) == [0]
    assert [len(why) for why in first["given_up"][0]] == [module.LONGEST_REASON] * 2
    assert ["task-0 (position 0) is given up after 2 attempts" in each for each in said] == [True]
