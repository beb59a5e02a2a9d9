"""A judge that failed is asked again after a pause: not after the last time, and not where nobody waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.rollout import judge_caller as judge_caller
from ajet.rollout.attempt import AttemptResult
from ajet.rollout.judge_caller import JudgeCaller
from ajet.schema.errors import JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask


class Away:
    """A judge whose server is."""

    def __init__(self) -> None:
        self.asked = 0

    async def verdict(self, task: WorkflowTask, output: WorkflowOutput) -> Any:
        self.asked += 1
        raise JudgeFailure("away", retryable=True)

    def let_go(self) -> None:
        """There is nothing."""


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    monkeypatch.setattr(judge_caller, "RETRY_PAUSE", 600.0)
    yield Away()


def asked_for(judge: Away, retries: int, stop: bool) -> AttemptResult:
    rollout = SimpleNamespace(episode_timeout=None, max_retries=retries, agent_madness_reward=0.0)
    asking = JudgeCaller(judge, SimpleNamespace(rollout=rollout), None)  # type: ignore[arg-type]
    played = AttemptResult(output=WorkflowOutput(), task=WorkflowTask(task=Task()))

    async def come() -> None:
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        verdict = asyncio.ensure_future(asking.judge_attempt(SimpleNamespace(), played, stopped))  # type: ignore[arg-type]
        while stop and played.failure is None:
            await asyncio.sleep(0.01)
        if stop:
            stopped.set_result("enough_groups")
        assert await asyncio.wait_for(verdict, 20) is None

    try:
        asyncio.run(come())
    finally:
        asking.close()
    return played


def test_there_is_no_pause_after_the_last_time(judge: Away) -> None:
    played = asked_for(judge, retries=0, stop=False)
    assert played.failure is not None and played.failure.kind and judge.asked == 1


def test_who_is_stopped_in_the_pause_is_stopped(judge: Away) -> None:
    played = asked_for(judge, retries=3, stop=True)
    assert (played.aborted, judge.asked) == ("enough_groups", 1)
