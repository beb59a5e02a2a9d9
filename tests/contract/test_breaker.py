"""The breaker: new attempts pause while what is outside of the model fails."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.config.schema.rollout import BreakerSettings
from ajet.rollout import breaker, episodes, verdicts
from ajet.rollout.breaker import Breaker
from ajet.schema.episode import Failure
from ajet.schema.errors import EnvironmentFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow import Workflow
from tests import rollout_workflows as flows
from tests.rollout_fixtures import deadline_passes, stage

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
    monkeypatch.setattr(sys.modules[__name__], "WORLD", World())
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.05)
    ended = Breaker.ended

    def counted(self: Breaker, failure: Failure | None, **more: Any) -> None:
        ended(self, failure, **more)
        WORLD.taken_in += breaker.lost(failure)

    monkeypatch.setattr(Breaker, "ended", counted)
    yield


def play(count: int = 8, **settings: Any) -> Any:
    limits = {"max_retries": 0, "max_env_worker": 4, **settings}
    with stage(Acts, breaker={"share": 0.4, "window": 8, "patience": 600}, **limits) as made:
        groups = made.play(count)
        return groups, made.rollout.tally


def test_what_an_outage_took_is_played_again_and_no_group_has_survivors_only() -> None:
    WORLD.out.update(range(4, 16))  # the first four end well
    groups, tally = play()
    episodes = [each for group in groups for each in group.episodes]
    assert len(episodes) == 16 and {each.reward for each in episodes} == {1.0}
    assert max(each.attempts for each in episodes) > 1 and tally.retries == 12
    assert WORLD.attempts == 28


def test_a_few_lost_attempts_are_failed_episodes_as_ever() -> None:
    WORLD.out.update((1, 9))
    groups, tally = play()
    failed = [each for group in groups for each in group.episodes if each.failure]
    assert [each.failure.boundary for each in failed] == ["environment"] * 2 and tally.retries == 0
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


def lost(boundary: Any = "environment", retryable: bool = True) -> Failure:
    return Failure(boundary, "gone", "gone", retryable=retryable)


@pytest.mark.parametrize(
    ("failures", "opens"),
    [
        ([lost()] * 8, True), ([lost("judge")] * 5 + [None] * 3, True), ([lost("sandbox")] * 4 + [None] * 4, False),
        ([lost("agent")] * 8, False), ([lost("judge", retryable=False)] * 8, False), ([lost()] * 7, False),
    ],
)  # fmt: skip
def test_it_opens_on_what_is_outside_and_may_mend(failures: list[Failure | None], opens: bool) -> None:
    made = Breaker(BreakerSettings(share=0.5, window=8))
    for failure in failures:
        made.ended(failure)
    assert made.is_open is opens
    off = Breaker(BreakerSettings(share=0.5, window=8), on=False)
    for failure in failures:
        off.ended(failure)
    assert not off.is_open


def test_probes_come_one_by_one_and_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(breaker, "time", SimpleNamespace(monotonic=lambda: clock[0]))  # not that of every loop
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 60.0)

    async def come() -> list[float]:
        made, found = Breaker(BreakerSettings(share=0.0, window=1)), []
        made.ended(lost())
        while len(found) < 8:
            clock[0] += 0.5
            if made.may_probe():
                assert not made.may_probe()
                found.append(clock[0])
                made.ended(lost(), probe=True)
        made.ended(None)  # one that began before says nothing
        assert made.is_open
        clock[0] += 60
        assert made.may_probe()
        made.ended(None, probe=True, aborted=True)
        assert made.is_open and made.may_probe()
        made.ended(None, probe=True)
        assert not made.is_open
        return found

    times = asyncio.run(come())
    assert [later - before for before, later in zip(times, times[1:], strict=False)] == [2, 4, 8, 16, 32, 60, 60]


class OneIsLost(Workflow):
    """The second attempt of a group finds no environment."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        if task.task_thread_index:
            raise EnvironmentFailure("no world")
        return WorkflowOutput(reward=1.0)


def test_an_attempt_whose_group_ends_in_the_pause_before_the_next_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, limits = threading.Event(), {"max_retries": 1, "group_deadline": 600, "min_group": 1}

    async def first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
        if timeout == 3600.0:
            pauses.set()
        await verdicts.first(*futures, timeout=timeout)

    monkeypatch.setattr(episodes, "RETRY_PAUSE", 3600.0)
    monkeypatch.setattr(episodes, "first", first)
    with deadline_passes(pauses.is_set), stage(OneIsLost, breaker={"share": 0.5, "window": 3}, **limits) as made:
        (group,) = made.play(1)
        assert sorted(each.status for each in group.episodes) == ["completed", "failed"]
        assert not made.rollout._breaker.is_open, "two attempts are fewer than three"


def test_a_probe_that_says_nothing_makes_room_for_the_next() -> None:
    async def come() -> None:
        made = Breaker(BreakerSettings(share=0.0, window=1))
        made.ended(lost())
        going: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        one, other, third = (made.begins() for _ in range(3))
        await one.admitted(going)
        waiting = asyncio.ensure_future(other.admitted(going))
        await asyncio.sleep(0)
        one.leave()  # it was stopped, or ajet itself failed
        await asyncio.wait_for(waiting, 60)
        waiting = asyncio.ensure_future(third.admitted(going))
        await asyncio.sleep(0)
        other.ended(None, aborted=True)
        await asyncio.wait_for(waiting, 60)
        third.ended(None)
        assert not made.is_open

    asyncio.run(come())


def test_a_lost_attempt_of_which_all_is_known_is_not_looked_at_again() -> None:
    async def come() -> int:
        breaker = Breaker(BreakerSettings(share=0.5, window=4, patience=600))
        breaker.begins()  # as where groups are asked for one by one without end: somebody always plays
        for _ in range(20):
            turn, stopped = breaker.begins(), asyncio.get_running_loop().create_future()
            turn.ended(lost())
            taken = asyncio.ensure_future(turn.taken(lost(), stopped))
            await asyncio.sleep(0)
            for _ in range(4):
                breaker.ended(None)
            assert not await taken
            turn.leave()
        return len(breaker._doubtful)

    assert asyncio.run(come()) == 0
