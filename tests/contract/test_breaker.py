"""The breaker: new attempts pause while what is outside of the model fails."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ajet import Workflow, WorkflowOutput, WorkflowTask
from ajet.schema.errors import EnvironmentFailure
from tests.support.rollouts import flows, group_ends_during_retry_pause, outages_pause, stage

pytestmark = pytest.mark.slow


class World:
    """What the attempts of a test find."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.attempts = 0
        self.out: set[int] = set()
        """Which attempts, counted over all, find no environment."""
        self.taken_in = 0
        """Lost attempts that the breaker knows of."""

    def take_in(self) -> None:
        """One more is known."""
        self.taken_in += 1

    def number(self) -> int:
        """Of the attempt that asks."""
        with self._lock:
            self.attempts += 1
            return self.attempts - 1


WORLD = World()


class Acts(Workflow):
    """Needs its environment. Once that is there again, an attempt ends when the breaker knows of all that were lost,
    whichever thread comes first."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        number = WORLD.number()
        await flows.ask(tuner, "x")
        if number in WORLD.out:
            raise EnvironmentFailure("no world")
        while number > max(WORLD.out, default=number) and WORLD.taken_in < len(WORLD.out):
            await asyncio.sleep(0.01)
        return WorkflowOutput(reward=1.0)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    world = World()
    monkeypatch.setattr(sys.modules[__name__], "WORLD", world)
    with outages_pause(0.02, world.take_in):
        yield


def play(count: int = 8, **settings: Any) -> Any:
    limits = {"max_retries": 0, "max_env_worker": 4, **settings}
    with stage(Acts, breaker={"share": 0.4, "window": 8, "patience": 600}, **limits) as made:
        groups = made.play(count)
        return groups, made.retries


def test_what_an_outage_took_is_played_again_and_no_group_has_survivors_only() -> None:
    WORLD.out.update(range(4, 16))  # the first four end well
    groups, retries = play()
    episodes = [each for group in groups for each in group.episodes]
    assert len(episodes) == 16 and {each.reward for each in episodes} == {1.0}
    assert max(each.attempts for each in episodes) > 1 and retries == 12
    assert WORLD.attempts == 28


def test_a_few_lost_attempts_are_failed_episodes_as_ever() -> None:
    WORLD.out.update((1, 9))
    groups, retries = play()
    failed = [each for group in groups for each in group.episodes if each.failure]
    assert [each.failure.boundary for each in failed] == ["environment"] * 2 and retries == 0
    assert WORLD.attempts == 16


def test_fewer_attempts_than_the_window_say_nothing() -> None:
    WORLD.out.update(range(99))
    groups, _ = play(2)
    assert WORLD.attempts == 4 and all(each.failure for group in groups for each in group.episodes)


def test_when_patience_is_over_lost_attempts_are_failed_episodes() -> None:
    WORLD.out.update(range(10_000))
    with stage(Acts, breaker={"share": 0.4, "window": 8, "patience": 0.01}, max_retries=0, max_env_worker=4) as made:
        episodes = [each for group in made.play(8) for each in group.episodes]
    assert len(episodes) == 16 and all(each.failure for each in episodes)


class OneIsLost(Workflow):
    """The second attempt of a group finds no environment."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        if task.task_thread_index:
            raise EnvironmentFailure("no world")
        return WorkflowOutput(reward=1.0)


def test_an_attempt_whose_group_ends_in_the_pause_before_the_next_counts_once() -> None:
    limits = {"max_retries": 1, "group_deadline": 600, "min_group": 1}
    with group_ends_during_retry_pause(), stage(OneIsLost, breaker={"share": 0.5, "window": 3}, **limits) as made:
        (group,) = made.play(1)
        assert sorted(each.status for each in group.episodes) == ["completed", "failed"]
        assert not made.is_paused, "two attempts are fewer than three"
