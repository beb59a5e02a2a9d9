"""Run in the environment with `verifiers`: list a taskset's tasks, or run one task at OPENAI_BASE_URL.

    python bridge.py tasks '{"taskset": {"id": "sums"}}' --count 100
    python bridge.py play  '{"taskset": {"id": "sums"}}' --index 7

Invariants: ajet never imports `verifiers`, and this file never imports ajet. The last line of `play` is `{"reward",
"errors", "answer", "metrics"}`; each error has its boundary in ajet's words, so a failure outside the model is never a
reward. All other output goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any

BOUNDARIES = {
    "ProviderError": "engine",
    "HarnessError": "agent",
    "ToolsetError": "tool",
    "SandboxError": "sandbox",
    "TaskError": "environment",
    "EnvError": "environment",
    "InterceptionError": "environment",
    "TunnelError": "environment",
}
"""Error type of `verifiers` -> boundary; other types are environment failures."""
SETUP = "harness setup:"
"""Prefix of a HarnessError raised before the agent started."""
SAY_S, AGAIN_S, PAUSE_S = 3.0, 15.0, 0.1
LONGEST = 2000
"""Maximum characters of an error message."""


def main() -> int:
    """Run the command given by the arguments, and print its result to standard output.

    Returns:
        Exit code 0 once the result is printed, also if the result reports errors.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("tasks", "play"))
    parser.add_argument("environment", help="their [env] block as JSON")
    parser.add_argument("--path", action="append", default=[], help="a folder with modules of tasksets")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--index", type=int, default=0)
    options = parser.parse_args()
    sys.path[:0] = options.path
    os.environ["PYTHONPATH"] = os.pathsep.join(options.path)  # tool servers are separate processes
    # Harnesses that are scripts need the programs of this environment, for example `uv`.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # The result goes to the original standard output, and everything else that is printed to standard error.
    result_stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with result_stream:
        environment = json.loads(options.environment)
        if options.verb == "tasks":
            for row in list_tasks(environment, options.count):
                result_stream.write(json.dumps(row) + "\n")
        else:
            result_stream.write(json.dumps(play_episode(environment, options.index)) + "\n")
    return 0


def list_tasks(environment: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return index, id and prompt text of the first `count` tasks of a taskset."""
    taskset = _open_environment(environment).taskset
    return [
        {"index": index, "id": task.data.id or task.data.name or "", "prompt": task.data.prompt_text}
        for index, task in enumerate(itertools.islice(taskset, count))
    ]


def play_episode(environment: dict[str, Any], index: int) -> dict[str, Any]:
    """Run one episode of the task with this index, and return its reward or its errors."""
    try:
        return build_result(asyncio.run(_play_task(environment, index)))
    except Exception as error:  # noqa: BLE001 - code of a taskset, which may raise anything: an error, never a reward
        return {"reward": None, "errors": [make_error(type(error).__name__, str(error))]}


def build_result(episode: Any) -> dict[str, Any]:
    """Return the result of an Episode.

    There is no reward if the episode is not `ok`, if an attempt failed (its calls were captured too), if the number of
    trained agents is not one, or if another agent uses the trained model.
    """
    trained_traces = [trace for trace in episode.traces if trace.agent.trainable]
    checked_traces = (
        trained_traces if episode.ok else episode.traces
    )  # errors of other agents do not count if the episode is ok
    raised_errors = [*episode.errors, *(error for trace in checked_traces for error in trace.errors)]
    errors = [make_error(error.type, error.message) for error in raised_errors]
    if errors or not episode.ok:
        if not errors:
            stop_condition = next((trace.stop_condition for trace in episode.traces if not trace.ok), None)
            errors.append(
                make_error("Episode", f"the rollout failed without naming an error (stop condition {stop_condition})")
            )
        return {"reward": None, "errors": errors}
    if len(trained_traces) != 1:
        message = f"{len(trained_traces)} of its agents are trainable; expected exactly one"
        return {"reward": None, "errors": [make_error("Episode", message)]}
    gateway_url = os.environ.get("OPENAI_BASE_URL")
    other_agents = [trace.agent for trace in episode.traces if not trace.agent.trainable]
    if any(getattr(agent.config.client, "base_url", None) == gateway_url for agent in other_agents):
        message = "an untrained agent uses the trained model: configure another model and client for it"
        return {"reward": None, "errors": [make_error("Episode", message)]}
    (trace,) = trained_traces
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    metrics |= {f"reward_{name}": part.score for name, part in trace.rewards.items() if part is not None}
    return {"reward": trace.reward, "errors": [], "answer": _get_answer(trace), "metrics": metrics}


def make_error(kind: str, message: str) -> dict[str, str]:
    """Return an error as JSON values, with the boundary that failed. Only the end of a long message is kept."""
    boundary = "environment" if message.startswith(SETUP) else BOUNDARIES.get(kind, "environment")
    return {"boundary": boundary, "type": kind, "message": message[-LONGEST:]}


def _get_answer(trace: Any) -> str:
    """Return the agent's last reply as text, or "" without one."""
    return str(trace.root_reply or getattr(trace, "last_reply", "") or "")


def _open_environment(environment: dict[str, Any]) -> Any:
    """Load the environment of `verifiers` for an `[env]` block."""
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    return load_environment(resolve_env_config(environment))


def lock_preparation(prepare: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap the function of `verifiers` that creates a harness environment with `uv`, to run in one process at a time.

    Two processes creating the same environment, such as the first two episodes, would disturb each other. Later
    episodes find the environment and do not wait.
    """

    @functools.wraps(prepare)
    async def prepared(runtime: Any, script: str | bytes, *args: Any, **kwargs: Any) -> Any:
        """Prepare the script's environment, with a lock unless an earlier call has prepared the same script."""
        cache = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache" / "uv")
        marker = (
            cache / f"ajet-made-{hashlib.sha256(script.encode() if isinstance(script, str) else script).hexdigest()}"
        )
        with contextlib.ExitStack() as locks:
            if not marker.exists():
                with contextlib.suppress(OSError):  # scripts are not shared if the cache cannot be written
                    cache.mkdir(parents=True, exist_ok=True)
                    lock = locks.enter_context((cache / "ajet-scripts.lock").open("w"))
                    await _take_lock(lock)
            program = await prepare(runtime, script, *args, **kwargs)
            with contextlib.suppress(OSError):
                marker.touch()
        return program

    return prepared


async def _take_lock(lock: IO[str]) -> None:
    """Wait for an exclusive lock on an open file, with a message on standard error every few seconds."""
    next_message = time.monotonic() + SAY_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(PAUSE_S)
        if time.monotonic() > next_message:
            print(f"waiting for another process that creates a harness's environment (lock: {lock.name})", flush=True)
            next_message = time.monotonic() + AGAIN_S


async def _play_task(environment: dict[str, Any], index: int) -> Any:
    """Run one episode of a task with the model of the environment variables, and return the Episode of `verifiers`."""
    import verifiers.v1 as vf
    from verifiers.v1.env import RunSlot
    from verifiers.v1.runtimes.base import Runtime

    # The patch replaces the method in this process only, which runs a single episode.
    Runtime.prepare_uv_script = lock_preparation(Runtime.prepare_uv_script)
    environment_instance = _open_environment(environment)
    task = next(itertools.islice(environment_instance.taskset, index, None), None)
    if task is None:
        raise LookupError(f"the taskset has no task {index}")
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    model = vf.ModelContext(model=os.environ["OPENAI_MODEL"], client=client)
    async with environment_instance.serving():
        return await environment_instance.run_slot(RunSlot(task), model)


if __name__ == "__main__":
    sys.exit(main())
