"""A tool environment: what an episode costs here, and what it costs `verifiers`.

The same trivial task on both sides (call the tool `double` once, answer with what it says) at the same scripted
endpoint, which takes no time, in a process of its own; so all that is measured is overhead. Ours: `mcp_agent` with a
server of the `mcp` package, one for all attempts. Theirs, in an environment that has their package
(tutorial/example_verifiers/requirements.txt): a taskset with a shared toolset and their harness `null`. Both after a
first episode that is not counted, with as many at once. Printed: episodes a second, and processor time an episode with
that of all processes started for it. Goal: at least as many episodes a second.

    python benchmarks/bench_tool_environment.py [--episodes N] [--theirs N] [--at-once N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from loguru import logger
from ratios import kept

ROOT = Path(__file__).parents[1]

TOOL_SERVER = """
try:
    from mcp.server import MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("numbers")


@server.tool()
def double(number: int) -> str:
    "Twice a number."
    return str(2 * number)


if __name__ == "__main__":
    server.run()
"""
JUDGE = """
def right(task, output):
    return float(output.metadata["final_answer"] == "42")
"""
TASKSET = """
import verifiers.v1 as vf


class Numbers(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    @vf.tool
    async def double(self, number: int) -> str:
        "Twice a number."
        return str(2 * number)


class Double(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == "42")


class Doubles(vf.Taskset[Double, vf.TasksetConfig]):
    def load(self):
        for _ in range(1_000):
            yield Double(vf.TaskData(prompt="What is twice 21?"), self.config.task)

    @classmethod
    def toolsets(cls, config):
        return [Numbers(vf.SharedToolsetConfig())]


__all__ = ["Doubles"]

if __name__ == "__main__":
    Numbers.run()
"""
THEIRS = """
import asyncio, itertools, json, os, resource, sys, time

os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
sys.path.insert(0, os.getcwd())
import verifiers.v1 as vf
from verifiers.v1.env import RunSlot
from verifiers.v1.utils.loaders import load_environment, resolve_env_config


def cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def main(url, count, at_once):
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = load_environment(resolve_env_config({"taskset": {"id": "doubles"}, "agent": agent}))
    client = vf.EvalClientConfig(base_url=url, api_key_var="KEY")
    model = vf.ModelContext(model="bench", client=client)
    room = asyncio.Semaphore(at_once)
    async with env.serving():
        tasks = list(itertools.islice(env.taskset, count + 1))
        first = await env.run_slot(RunSlot(tasks[0]), model)
        assert first.ok, [first.errors, [each.errors for each in first.traces]]
        began, before = time.monotonic(), cpu()
        played = await asyncio.gather(*(env.run_slot(RunSlot(task), model, room) for task in tasks[1:]))
        seconds, used = time.monotonic() - began, cpu() - before
    assert all(each.ok and each.traces[0].reward == 1 for each in played)
    return {"seconds": seconds, "cpu": used, "episodes": count}


told = asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
print(json.dumps(told))
"""


def serve(port: Any) -> None:
    """A model that calls its first tool, and says what it answered. Puts its port into `port`."""
    import socket

    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            came = await receive()
            body, more = body + came.get("body", b""), came.get("more_body", False)
        asked = json.loads(body)
        last = asked["messages"][-1]
        if last["role"] == "tool":
            content = last["content"]
            said = content if isinstance(content, str) else "".join(part["text"] for part in content)
            message: dict[str, Any] = {"role": "assistant", "content": said}
        else:
            call = {"name": asked["tools"][0]["function"]["name"], "arguments": '{"number": 21}'}
            calls = [{"index": 0, "id": "call_1", "type": "function", "function": call}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        finish = "tool_calls" if message["content"] is None else "stop"
        head = {"id": "c", "created": 1, "model": "bench"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if asked.get("stream"):
            kind = b"text/event-stream"
            parts = [{"delta": message, "finish_reason": None}, {"delta": {}, "finish_reason": finish}]
            chunks = [
                {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, **part}]} for part in parts
            ] + [{**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}]
            answer = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks) + b"data: [DONE]\n\n"
        else:
            kind, choice = b"application/json", {"index": 0, "message": message, "finish_reason": finish}
            answer = json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        headers = [(b"content-type", kind), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    listener = socket.socket(proto=socket.IPPROTO_TCP)  # named, so that asyncio turns off Nagle's algorithm
    listener.bind(("127.0.0.1", 0))
    port.put(listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


def ours(folder: Path, url: str, episodes: int, at_once: int) -> dict[str, float]:
    """Seconds, and processor seconds, of so many episodes."""
    from ajet.commands.evaluation.models import open_target
    from ajet.commands.evaluation.play import EvaluationOptions, prepare_experiment
    from ajet.train.parts import assemble

    (folder / "server.py").write_text(TOOL_SERVER)
    (folder / "judge.py").write_text(JUDGE)
    rows = (json.dumps({"query": "What is twice 21?", "id": str(n)}) for n in range(episodes + 1))
    (folder / "tasks.jsonl").write_text("\n".join(rows) + "\n")
    server = {"command": sys.executable, "args": [str(folder / "server.py")], "shared": True}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"numbers": server}}))
    files = {"training": {"file_path": "tasks.jsonl"}, "validation": {"file_path": "tasks.jsonl"}}
    tree = {
        "task_reader": {"type": "jsonl_dataset_file", "jsonl_dataset_file": files},
        "task_judge": {"judge_protocol": "judge.py->right"},
        "environment": {"use": "servers.json"},
        "rollout": {
            "user_workflow": "mcp_agent",
            "engine": "endpoint",
            "endpoint": {"base_url": "http://set/v1", "model": "bench"},
            "isolation": "loop",
            "num_repeat": 1,
            "max_env_worker": at_once,
            "mcp_agent": {"max_steps": 3},
        },
    }
    (folder / "ours.yaml").write_text(json.dumps({"ajet": tree}))
    experiment, (model,) = open_target(str(folder / "ours.yaml"), None, [f"bench@{url}"])
    with assemble(
        model.apply_to(prepare_experiment(experiment, EvaluationOptions())), run_id="bench", split="validation"
    ) as parts:
        tasks = list(enumerate(parts.tasks("validation")))
        warm = list(parts.rollout.play(tasks[:1], step=0, split="validation"))
        assert warm[0].scored, warm[0].episodes[0].failure
        began, before = time.monotonic(), cpu()
        groups = list(parts.rollout.play(tasks[1:], step=0, split="validation"))
        seconds, used = time.monotonic() - began, cpu() - before
    assert all(group.episodes[0].reward == 1 for group in groups)
    return {"seconds": seconds, "cpu": used, "episodes": episodes}


def cpu() -> float:
    """Processor seconds of this process and of those that it started, the endpoint's aside."""
    import psutil

    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    for child in psutil.Process().children(recursive=True):
        if "server.py" in " ".join(child.cmdline()):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def theirs(folder: Path, url: str, episodes: int, at_once: int) -> dict[str, float]:
    """The same of verifiers, by its own Python."""
    from ajet_environments.venvs import prepare_python

    python = prepare_python(ROOT / "tutorial" / "example_verifiers" / "requirements.txt", say=print)
    (folder / "doubles.py").write_text(TASKSET)
    (folder / "play.py").write_text(THEIRS)
    command = [str(python), str(folder / "play.py"), url, str(episodes), str(at_once)]
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=folder, env={**clean, "KEY": "none", "PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"verifiers did not play:\n{done.stderr[-3000:]}")
    told: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the goal is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--theirs", type=int, default=12, help="episodes of verifiers, which take seconds each")
    parser.add_argument("--at-once", type=int, default=4)
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logger.remove()
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=serve, args=(port,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{port.get(timeout=60)}/v1"
    try:
        with tempfile.TemporaryDirectory() as folder:
            there = theirs(Path(folder), url, chosen.theirs, chosen.at_once)
            here = ours(Path(folder), url, chosen.episodes, chosen.at_once)
    finally:
        server.terminate()
        server.join()
    print(f"tool environment: one tool call an episode, {chosen.at_once} at once, an endpoint that takes no time")
    rates = []
    for name, told in (("ajet", here), ("verifiers", there)):
        rates.append(told["episodes"] / told["seconds"])
        overhead = chosen.at_once * told["seconds"] / told["episodes"] * 1000
        each = told["cpu"] / told["episodes"] * 1000
        print(f"  {name}: {rates[-1]:.2f} episodes a second, {overhead:.0f} ms and {each:.0f} ms of CPU an episode")
    print(f"  ratio {rates[0] / rates[1]:.1f} (limit 1)")
    return 0 if kept("episodes a second against verifiers", rates[0] / rates[1], at_least=1) else 1


if __name__ == "__main__":
    sys.exit(main())
