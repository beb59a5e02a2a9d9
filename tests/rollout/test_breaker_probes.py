"""When the breaker opens, whom it lets probe, and what it knows of lost attempts; tests/contract/test_breaker.py plays
it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.config.schema.rollout import BreakerConfig
from ajet.rollout import breaker
from ajet.rollout.breaker import Breaker
from ajet.schema.episode import Failure


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
    made = Breaker(BreakerConfig(share=0.5, window=8))
    for failure in failures:
        made.report_end(failure)
    assert made.is_open is opens
    off = Breaker(BreakerConfig(share=0.5, window=8), on=False)
    for failure in failures:
        off.report_end(failure)
    assert not off.is_open


def test_probes_come_one_by_one_and_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(breaker, "time", SimpleNamespace(monotonic=lambda: clock[0]))  # not that of every loop

    async def come() -> list[float]:
        made, found = Breaker(BreakerConfig(share=0.0, window=1)), []
        made.report_end(lost())
        while len(found) < 8:
            clock[0] += 0.5
            if made.may_probe():
                assert not made.may_probe()
                found.append(clock[0])
                made.report_end(lost(), probe=True)
        made.report_end(None)  # one that began before says nothing
        assert made.is_open
        clock[0] += 60
        assert made.may_probe()
        made.report_end(None, probe=True, aborted=True)
        assert made.is_open and made.may_probe()
        made.report_end(None, probe=True)
        assert not made.is_open
        return found

    times = asyncio.run(come())
    assert [later - before for before, later in zip(times, times[1:], strict=False)] == [2, 4, 8, 16, 32, 60, 60]


def test_a_probe_that_says_nothing_makes_room_for_the_next() -> None:
    async def come() -> None:
        made = Breaker(BreakerConfig(share=0.0, window=1))
        made.report_end(lost())
        going: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        one, other, third = (made.open_turn() for _ in range(3))
        await one.wait_admitted(going)
        waiting = asyncio.ensure_future(other.wait_admitted(going))
        await asyncio.sleep(0)
        one.leave()  # it was stopped, or ajet itself failed
        await asyncio.wait_for(waiting, 60)
        waiting = asyncio.ensure_future(third.wait_admitted(going))
        await asyncio.sleep(0)
        other.report_end(None, aborted=True)
        await asyncio.wait_for(waiting, 60)
        third.report_end(None)
        assert not made.is_open

    asyncio.run(come())


def test_a_lost_attempt_of_which_all_is_known_is_not_looked_at_again() -> None:
    async def come() -> int:
        breaker = Breaker(BreakerConfig(share=0.5, window=4, patience=600))
        breaker.open_turn()  # as where groups are asked for one by one without end: somebody always plays
        for _ in range(20):
            turn, stopped = breaker.open_turn(), asyncio.get_running_loop().create_future()
            turn.report_end(lost())
            taken = asyncio.ensure_future(turn.was_outage(lost(), stopped))
            await asyncio.sleep(0)
            for _ in range(4):
                breaker.report_end(None)
            assert not await taken
            turn.leave()
        return len(breaker.doubtful)

    assert asyncio.run(come()) == 0
