"""Agents of AWorld that raise, hang or loop: each ends its own episode, and leaves neither agent nor tool server.

(Tool servers that are lost: plugins/ajet_aworld/tests/test_play.py.)
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest

from tests.support.aworld_fixtures import NOTES, call, loop_from, played
from tests.support.rollouts import time_is_up

pytest.importorskip("aworld")
pytestmark = pytest.mark.extra_slow

AGENTS = f"""
import asyncio
import threading
from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig
from train.adapter.verl.aworld_agent_loop import AworldAgentLoop

HANGS = threading.Event()

class Raising(Agent):
    async def async_policy(self, observation, info={{}}, message=None, **kwargs):
        if "t0" in str(observation.content) or "task 0" in str(observation.content):
            raise RuntimeError("a bug in the agent")
        return await super().async_policy(observation, info, message, **kwargs)

class Hanging(Agent):
    async def async_policy(self, *args, **kwargs):
        if getattr(self, "asked", False):
            HANGS.set()
            await asyncio.Event().wait()
        self.asked = True
        return await super().async_policy(*args, **kwargs)

class Loop(AworldAgentLoop):
    kind: type = Agent

    def build_agents(self):
        conf = AgentConfig(llm_base_url=self.get_llm_server_address(), llm_model_name="m", llm_api_key="dummy")
        tools = {{"mcpServers": {{"here": {{"command": {sys.executable!r}, "args": ["-I", {str(NOTES)!r}]}}}}}}
        return self.kind(name="a", conf=conf, mcp_servers=["here"], mcp_config=tools)

class Raises(Loop):
    kind: type = Raising

class Hangs(Loop):
    kind: type = Hanging
"""


def require_nothing_left() -> None:
    """Of agents and of their tool servers, which a stopped attempt ends after its episode has."""
    from aworld.core.agent.base import AgentFactory
    from aworld.sandbox.runtime.manager import SandboxManager

    end = time.monotonic() + 120
    while left := [
        *(each.pid for each in psutil.Process().children(recursive=True) if str(NOTES) in cmdline(each)),
        *SandboxManager.get_instance().get_registered_sandbox_ids(),
    ]:
        assert time.monotonic() < end, left
        time.sleep(0.1)
    assert not AgentFactory._agent_instance


def cmdline(process: psutil.Process) -> list[str]:
    """None of one that has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def test_one_that_raises_fails_its_episode_and_no_other(tmp_path):
    loop = loop_from(tmp_path, AGENTS, "Raises")
    with played(loop, lambda _: "fine", max_retries=0, num_repeat=1) as made:
        raised, other = sorted((group.episodes[0] for group in made.play(2)), key=lambda episode: episode.order)
        require_nothing_left()
    assert raised.failure is not None and raised.failure.boundary == "agent", raised.failure
    assert "a bug in the agent" in raised.failure.message and not raised.timelines
    assert other.failure is None and other.metadata["final_answer"] == "fine"


@pytest.mark.parametrize("isolation", ["thread", "loop"])
def test_one_that_hangs_is_late_and_its_tools_end(tmp_path, isolation):
    loop = loop_from(tmp_path, AGENTS, "Hangs")
    hangs = sys.modules[loop.__module__].HANGS
    settings = {"max_retries": 0, "isolation": isolation, "episode_timeout": 600}
    with played(loop, lambda _: call("notes"), num_repeat=1, **settings) as made:
        with time_is_up(hangs.is_set):
            episode = made.episode()
        assert made.engine.requests == 1
        require_nothing_left()
    assert episode.failure is not None and "600 s" in episode.failure.message, episode.failure
    assert episode.sampled_tokens == sum(episode.untrained.values()) > 0


def test_one_whose_runner_misses_its_end_is_told_again(tmp_path, monkeypatch):
    """AWorld waits for messages in `asyncio.wait_for`: in Python 3.11 a cancellation that comes as one does is lost."""
    from aworld.runner import Runners

    from ajet_aworld import play

    run, missed = Runners.run_task, []

    async def deaf_once(task):
        running = asyncio.ensure_future(run(task))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            missed.append(task)
            return await running

    monkeypatch.setattr(Runners, "run_task", deaf_once)
    monkeypatch.setattr(play, "_CANCEL_TIMEOUT_S", 0.1)
    loop = loop_from(tmp_path, AGENTS, "Hangs")
    hangs = sys.modules[loop.__module__].HANGS
    with played(
        loop, lambda _: call("notes"), num_repeat=1, isolation="loop", max_retries=0, episode_timeout=600
    ) as made:
        with time_is_up(hangs.is_set):
            made.episode()
        require_nothing_left()
    assert missed


def test_its_tools_end_where_the_end_is_asked_for_twice(monkeypatch):
    from aworld.runner import Runners

    from ajet_aworld import play

    released: list[object] = []
    runs, told = asyncio.Event(), asyncio.Event()

    async def deaf_once(task):
        with suppress(asyncio.CancelledError):
            runs.set()
            await asyncio.Event().wait()
        told.set()
        await asyncio.Event().wait()

    async def release(agent):
        released.append(agent)

    monkeypatch.setattr(Runners, "run_task", deaf_once)
    monkeypatch.setattr(play, "prepare_agent", lambda *_: None)
    monkeypatch.setattr(play, "release_agent", release)
    agent = SimpleNamespace(sandbox=None)

    async def main():
        playing = asyncio.ensure_future(play.run_agents(None, [agent], "?", "s"))
        await runs.wait()
        playing.cancel()
        await told.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(main())
    assert released == [agent]


def test_one_that_loops_ends_with_the_models_room(tmp_path):
    """AWorld's own bounds (max_loop_steps, endless_threshold) stop nothing in 0.3.2."""
    loop = loop_from(tmp_path, AGENTS, "Loop")
    long = json.dumps({"text": "x" * 300})
    with played(loop, lambda _: call("note", long), max_retries=0, num_repeat=1) as made:
        episode = made.episode()
        require_nothing_left()
    assert episode.failure is not None and "maximum context length" in episode.failure.message, episode.failure
    assert len(episode.calls) > 5 and {each.fork for each in episode.calls if len(each.response_ids)} == {None}
