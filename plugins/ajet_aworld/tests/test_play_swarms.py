"""Swarms of AWorld's agents, of which those on our address are trained."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.aworld_fixtures import call, loop_from, played, require_exact, results, turns

pytest.importorskip("aworld")
pytestmark = pytest.mark.slow


@contextmanager
def other_model(asked: list[dict]) -> Iterator[str]:
    """The address of a server that is not ours."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message = {"role": "assistant", "content": "elsewhere"}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            told = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


SWARM = """
from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig
from aworld.core.agent.swarm import GraphBuildType, Swarm, TeamSwarm
from train.adapter.verl.aworld_agent_loop import AworldAgentLoop

OTHER = {}

def agent(name, address, model="m", **more):
    return Agent(name=name, conf=AgentConfig(llm_base_url=address, llm_model_name=model, llm_api_key="dummy"),
                 system_prompt=f"You are {name}.", **more)

class Loop(AworldAgentLoop):
    async def build_agents(self):
        first = agent("first", await self.get_llm_server_address(), await self.get_llm_server_model_name())
        second = agent("second", OTHER.get("url") or self.get_llm_server_address())
        return self.swarm(first, second)

class Workflow(Loop):
    def swarm(self, first, second):
        return Swarm(first, second)

class Team(Loop):
    def swarm(self, first, second):
        return TeamSwarm(first, second)

class Handoff(Loop):
    def swarm(self, first, second):
        return Swarm((first, second), build_type=GraphBuildType.HANDOFF)
"""


def in_turn(request) -> str:
    """The first agent hands over where it can, the second answers."""
    text = "\n".join(turns(request))
    tool = re.search(r'"name": "(second[^"]*)"', text)
    if "You are first." in text and tool and not results(request):
        return call(tool[1], '{"content": "for you"}')
    return f"done by {'first' if 'You are first.' in text else 'second'}"


@pytest.mark.extra_slow
@pytest.mark.parametrize("kind", ["Workflow", "Team", "Handoff"])
def test_a_swarm_trains_every_agent_on_our_address_in_timelines_of_its_own(tmp_path, kind):
    loop = loop_from(tmp_path, SWARM, kind)
    with played(loop, in_turn, num_repeat=3) as made:
        episodes = [episode for group in made.play(2) for episode in group.episodes]
    for episode in episodes:
        require_exact(episode, lines=2)
        assert {each.agent for each in episode.calls} == {"first", "second"}


def beside_another_model(folder, swarm, kind):
    """Two episodes of a swarm some of whose agents ask a server elsewhere, and what that was asked."""
    loop = loop_from(folder, swarm, kind)
    asked: list[dict] = []
    with other_model(asked) as url:
        sys.modules[loop.__module__].OTHER["url"] = url
        with played(loop, in_turn, num_repeat=2) as made:
            return [episode for group in made.play(1) for episode in group.episodes], asked


@pytest.mark.extra_slow
def test_an_agent_with_an_address_of_its_own_is_not_trained(tmp_path):
    episodes, asked = beside_another_model(tmp_path, SWARM, "Workflow")
    for episode in episodes:
        require_exact(episode)
        assert {each.agent for each in episode.calls} == {"first"} and episode.metadata["final_answer"] == "elsewhere"
    assert len(asked) == 2 and asked[0]["messages"][-1]["content"] == "done by first"


PAGES_SWARM = """
from typing import Union

from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig
from aworld.core.agent.swarm import Swarm
from train.adapter.verl.aworld_agent_loop import AworldAgentLoop

OTHER = {}

class Loop(AworldAgentLoop):
    def build_agents(self) -> Union[Agent, Swarm]:
        agent_to_be_train = Agent(
          name="agent_to_be_train",
          conf=AgentConfig(
              llm_base_url=self.get_llm_server_address(),
              llm_model_name=self.get_llm_server_model_name(),
          ),
        )
        plan_agent, exe_agent, sum_agent = (
            Agent(
              name=name,
              conf=AgentConfig(
                  llm_base_url=OTHER["url"],
                  llm_model_name="planner",
                  llm_api_key="a key"
              ),
            )
            for name in ("plan_agent", "exe_agent", "sum_agent")
        )
        return Swarm(
            agent_to_be_train, plan_agent, exe_agent, sum_agent,
        )
"""
"""The Chinese page's, with what it leaves empty, and with the names that AWorld's `Agent` cannot do without."""


@pytest.mark.extra_slow
def test_the_pages_swarm_of_four_trains_the_one_on_our_address_without_a_key(tmp_path):
    episodes, asked = beside_another_model(tmp_path, PAGES_SWARM, "Loop")
    for episode in episodes:
        require_exact(episode)
        assert {each.agent for each in episode.calls} == {"agent_to_be_train"}
        assert episode.metadata["final_answer"] == "elsewhere"
    assert [each["model"] for each in asked] == ["planner"] * 6
