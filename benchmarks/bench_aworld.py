"""What an episode of an AWorld agent costs here, beside AWorld's own runner: processor time, one episode at a time.

The agent is the same: three turns, two calls of a tool over streamable HTTP, then an answer. `aworld` is AWorld 0.3.2
without ajet, asking a scripted model over HTTP, whose processor time is another process's and not counted. `ajet` is
the same agent as an AworldAgentLoop in a rollout: the scripted model is an engine of tokens behind a gateway in the
same process, so that chat template, tokens, capture and record are counted with it. The tool server is another
process's in both. Imports are not counted, nor the first episodes of each.

Limit: at most 1.1 times AWorld's own processor time an episode.

    python benchmarks/bench_aworld.py [--episodes 40]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ratios import kept

ROOT = Path(__file__).parents[1]
LIMIT = 1.1
WARM = 3
"""Episodes that are not counted."""
QUESTION, SYSTEM, ANSWER = "What does it say?", "Use the tool twice, then answer.", "It says x."
SIZE = 200
"""Characters of a tool's answer."""


def agent(address: str, model: str, tools: str, **more: Any) -> Any:
    """The agent of both."""
    from aworld.agents.llm_agent import Agent
    from aworld.config import AgentConfig

    conf = AgentConfig(llm_base_url=address, llm_model_name=model, llm_api_key="dummy", **more)
    config = {"mcpServers": {"plain": {"type": "streamable-http", "url": tools}}}
    return Agent(name="reader", conf=conf, system_prompt=SYSTEM, mcp_servers=["plain"], mcp_config=config)


def measured(play: Any, episodes: int) -> dict[str, float]:
    """Seconds an episode, of this process's processor time and of the clock. `play(n)` plays that many."""
    play(WARM)
    cpu, wall = time.process_time(), time.perf_counter()
    play(episodes)
    return {"cpu": (time.process_time() - cpu) / episodes, "wall": (time.perf_counter() - wall) / episodes}


def aworld(tools: str, model: str, episodes: int) -> dict[str, float]:
    """AWorld by itself."""
    from aworld.core.task import Task
    from aworld.runner import Runners

    count = 0

    async def all_of(number: int) -> None:
        nonlocal count
        for _ in range(number):
            count += 1
            made = agent(model, "openai", tools, llm_provider="openai")
            task = Task(input=QUESTION, agent=made, session_id=f"s{count}")
            answer = (await Runners.run_task(task))[task.id]
            assert answer.success and answer.answer == ANSWER, answer

    loop = asyncio.new_event_loop()
    return measured(lambda number: loop.run_until_complete(all_of(number)), episodes)


def ajet(tools: str, model: str, episodes: int) -> dict[str, float]:
    """The same through ajet."""
    sys.path.insert(0, str(ROOT))
    from ajet_aworld.agent_loop import AworldAgentLoop
    from tests.support.aworld_fixtures import call, played, results

    class Loop(AworldAgentLoop):
        def build_agents(self) -> Any:
            return agent(self.get_llm_server_address(), "openai", tools)

    def script(request: Any) -> str:
        return call("big", json.dumps({"size": SIZE})) if len(results(request)) < 2 else ANSWER

    with played(Loop, script, num_repeat=1, max_env_worker=1) as made:

        def play(number: int) -> None:
            for group in made.play(number):
                (episode,) = group.episodes
                assert episode.failure is None and len(episode.calls) == 3, episode.failure
            made.seen.clear()

        return measured(play, episodes)


class Model(BaseHTTPRequestHandler):
    """The scripted model over HTTP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = sum(each["role"] == "tool" for each in asked["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
        if told < 2:
            function = {"name": "big", "arguments": json.dumps({"size": SIZE})}
            message = {"role": "assistant", "content": "", "tool_calls": [
                {"id": f"call_{told}", "type": "function", "function": function}]}  # fmt: skip
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if told < 2 else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        whole = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        body = json.dumps(whole).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *told: object) -> None:
        """Nothing."""


def serve() -> None:
    """The model and the tool server, until the end of standard input."""
    sys.path.insert(0, str(ROOT))
    from tests.mcp_servers.plain_http import PlainServer

    tools = PlainServer("legacy").start()
    tools.tools = [each for each in tools.tools if each["name"] == "big"]  # AWorld reads one page of a list
    model = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    import threading

    threading.Thread(target=model.serve_forever, daemon=True).start()
    print(json.dumps({"tools": tools.url, "model": f"http://127.0.0.1:{model.server_address[1]}/v1"}), flush=True)
    sys.stdin.read()
    tools.shutdown()
    model.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--role", choices=["serve", "aworld", "ajet"], help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "serve":
        serve()
        return 0
    if options.role:
        at = json.loads(options.at)
        played = {"aworld": aworld, "ajet": ajet}[options.role](at["tools"], at["model"], options.episodes)
        print(json.dumps(played), flush=True)
        os._exit(0)  # AWorld's threads

    here = [sys.executable, str(Path(__file__).resolve())]
    with tempfile.TemporaryDirectory() as folder:
        scratch = {name: folder for name in ("AWORLD_LOG_PATH", "AWORLD_MEMORY_ROOT", "HOME")}
        own = {"AWORLD_DISABLE_CONSOLE_LOG": "true", "CONTEXT_TOKEN_MODEL": "openai", "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(
            [*here, "--role", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )
        assert server.stdout is not None and server.stdin is not None
        at = server.stdout.readline()
        found = {}
        for role in ("aworld", "ajet"):
            env = {**os.environ, **own, **(scratch if role == "aworld" else {})}
            command = [*here, "--role", role, "--at", at, "--episodes", str(options.episodes)]
            done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True)
            found[role] = each = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{role:7} {each['cpu'] * 1000:7.1f} ms of processor an episode, {each['wall'] * 1000:7.1f} ms in all"
            )
        server.stdin.close()
        server.wait(30)
    ratio = found["ajet"]["cpu"] / found["aworld"]["cpu"]
    print(f"ajet / aworld: {ratio:.2f} (limit {LIMIT})")
    return int(not kept("processor time of an episode, against AWorld's own runner", ratio, at_most=LIMIT))


if __name__ == "__main__":
    sys.exit(main())
