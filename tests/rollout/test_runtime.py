"""Event loops of our own: closed when they end, with the descriptors that they hold."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import numpy as np

from ajet import WorkflowOutput
from ajet.rollout.runtime import LoopThread, UserLoop
from tests.support.rollouts import stage
from tests.support.served import start_serving


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_is_under_way_is_cancelled_and_the_loop_is_closed() -> None:
    before, ended = descriptors(), list[str]()
    own = LoopThread("a-loop")

    async def at_work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("cancelled")

    working = asyncio.run_coroutine_threadsafe(at_work(), own.loop)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), own.loop).result(60)
    own.stop(60)
    own.stop(60)
    assert ended == ["cancelled"] and working.cancelled()
    assert own.loop.is_closed() and not own.thread.is_alive() and descriptors() <= before


def test_a_loop_that_is_held_up_is_closed_by_its_thread_once_it_is_not() -> None:
    own, may = LoopThread("a-loop"), threading.Event()
    own.loop.call_soon_threadsafe(may.wait, 60)
    own.stop(0.05)
    assert own.thread.is_alive() and not own.loop.is_closed()
    may.set()
    own.thread.join(60)
    assert own.loop.is_closed()


def test_a_loop_for_user_code_is_closed_when_its_thread_ends() -> None:
    before = descriptors()
    loop = UserLoop("a-user-loop", "a judge")
    assert loop.submit(asyncio.sleep(0, "done")).result(60) == "done"
    loop.close()
    loop.close()
    loop.thread.join(60)
    assert loop.loop.is_closed() and descriptors() <= before


class Says:
    trainable_targets = None

    async def execute(self, workflow_task, tuner):  # type: ignore[no-untyped-def]
        await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=[{"role": "user", "content": "hi"}])
        return WorkflowOutput(reward=1.0)


class Teacher:
    """It says the same of every token."""

    def __init__(self) -> None:
        self.left: list[asyncio.AbstractEventLoop] = []

    async def logprobs(self, lines):  # type: ignore[no-untyped-def]
        return [np.full(line.ids.size, -0.5, np.float32) for line in lines]

    async def leave(self) -> None:
        self.left.append(asyncio.get_running_loop())


def test_a_rollout_that_ends_has_its_teacher_leave_its_loop() -> None:
    teacher = Teacher()
    with stage(Says, teacher=teacher) as played:
        assert played.episode().calls[0].teacher is not None and not teacher.left
    assert teacher.left == [played.rollout.loop]


def test_a_rollout_and_a_desk_leave_no_loop_open(tmp_path: Path) -> None:
    """What is opened a second time, once all that is kept for good is there, leaves nothing."""
    counts = []
    for _ in range(3):
        with stage(Says) as played:
            assert played.episode().reward == 1.0
        with start_serving(backlog=9, pending=tmp_path) as served:
            served.open(task="q")
        assert played.rollout.loop.is_closed() and served.desk.loop.is_closed()
        until = time.monotonic() + 60
        for judges in (played.rollout.judge_caller.loop, served.desk.judge_caller.loop):  # which nobody waits for
            judges.thread.join(max(0.0, until - time.monotonic()))
        counts.append(descriptors())
    assert counts[2] <= counts[1], counts
