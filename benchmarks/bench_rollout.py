"""Rollout: many concurrent episodes against an engine of fixed latency.

`turns`: 10,000 episodes of 5 calls, all at once, through the gateway's internal turn function, 20 s a call. The ideal
is 5 x 20 s, whatever the number of episodes; the ratio is ideal / measured, the limit 0.95. Memory is what an episode
adds while all of them wait. (The garbage collector runs at the pace that a play sets.)
`sdk`: 1,000 episodes through AsyncOpenAI over the in-process transport, on the isolation `loop`, through a whole
Rollout: the ratio, and CPU seconds a call, of which most is the OpenAI SDK's own work. With `--processes` they play
on `loops`, in so many processes, which have played an episode each before the clock starts; their processor time is
told apart. (As many calls a second as 10,000 agents make at 20 s: 2,000 at 4 s.)

    python benchmarks/bench_rollout.py [--episodes N] [--sdk-episodes N] [--latency S] [--processes N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from direct_call import call_model
from ratios import kept

from ajet.config import Experiment
from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedEngine
from ajet.gateway import Gateway
from ajet.rollout import Rollout
from ajet.rollout.components import make_gateway_limits
from ajet.rollout.runtime import reduce_collections
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow import Workflow
from tests.support.rollouts import AnswerJudge, renderer

CALLS = 5
LIMIT = 0.95
REPLY = "The next step is to add the two numbers and to carry one."
SYSTEM = "You solve sums step by step and give the answer in a box. " * 3


def a_gateway(latency: float, experiment: Experiment | None = None) -> Gateway:
    """Over a scripted engine; the renderer is the tests' (ChatML over bytes: more tokens than real ones have).
    `experiment`: bears as many clients as one of that run's."""
    limits = make_gateway_limits(experiment.ajet) if experiment is not None else None
    words = renderer()
    engine = ScriptedEngine(lambda _: REPLY, encode=words.encode, end_id=words.end_ids[0], latency=latency)
    return Gateway(engine, words, max_model_len=18000, max_response_tokens=4096, limits=limits).start()


def opening(number: int) -> list[dict[str, Any]]:
    """What an episode begins with."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What is {number} + {number}?"}]


class Peak:
    """The largest resident memory while all episodes wait, sampled from a thread of its own."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.before = self.most = self._process.memory_info().rss
        self._ended = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._ended.wait(0.25):
            self.most = max(self.most, self._process.memory_info().rss)

    def grown(self) -> int:
        """Bytes since it began."""
        self._ended.set()
        return self.most - self.before


async def turns(gateway: Gateway, number: int) -> int:
    """One episode on the gateway's loop: CALLS turns of one conversation. Answers its sampled tokens."""
    session = gateway.open(f"episode-{number}", key=(0, number, 0), sampling=Sampling(64), trainable=None)
    messages = opening(number)
    for turn in range(CALLS):
        message = await call_model(session, messages)
        messages = [*messages, message, {"role": "user", "content": f"Go on with step {turn + 1}."}]
    capture = session.close()
    assert [call.parent for call in capture.calls] == [None, *range(CALLS - 1)]
    return sum(len(call.response_ids) for call in capture.calls)


def bench_turns(episodes: int, latency: float) -> float:
    """Ideal over measured time."""

    async def everything() -> int:
        return sum(await asyncio.gather(*(turns(gateway, number) for number in range(episodes))))

    gateway = a_gateway(0.0)
    gateway.call(turns(gateway, 0)).result()
    gateway.close()
    gateway = a_gateway(latency)
    peak, cpu, began = Peak(), time.process_time(), time.monotonic()
    with reduce_collections():
        tokens = gateway.call(everything()).result()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    gateway.close()
    ideal = CALLS * latency
    calls = episodes * CALLS
    print(f"turns: {episodes} episodes of {CALLS} calls, {latency:g} s a call, {tokens} tokens sampled")
    print(f"  measured {wall:.1f} s, ideal {ideal:.1f} s: ratio {ideal / wall:.3f} (limit {LIMIT})")
    print(f"  CPU {cpu / calls * 1e6:.0f} us a call; memory {peak.grown() / episodes / 1024:.1f} KiB an episode")
    return ideal / wall


class Talks(Workflow):
    """The same conversation over the OpenAI SDK."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        messages: list[Any] = opening(task.task_batch_index)
        for turn in range(CALLS):
            reply = await client.chat.completions.create(messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": f"Go on with step {turn + 1}."})
        return WorkflowOutput(reward=1.0)


def of_agents() -> float:
    """Processor seconds of all processes that were started here, those that still run among them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used += sum(child.cpu_times()[:2])
    return used


def bench_sdk(episodes: int, latency: float, processes: int) -> float:
    """Ideal over measured time, from the first task to the last closed group. `processes`: 0 for this one alone."""
    settings = {
        "isolation": "loops" if processes else "loop", "processes": processes or None, "max_env_worker": episodes,
        "num_repeat": 1, "episode_timeout": None, "user_workflow": "benchmarks.bench_rollout->Talks",
    }  # fmt: skip
    experiment = Experiment.from_dict({"ajet": {"rollout": settings}}, base=Path(__file__).parent)
    gateway = a_gateway(latency, experiment)
    rollout = Rollout(experiment, gateway, Talks, cast(Any, AnswerJudge()), run_id="bench")
    tasks = [(order, Task(main_query="sum", task_id=str(order))) for order in range(episodes)]
    if processes:
        list(rollout.play(tasks[:processes], step=0, split="train"))
    load, theirs = os.getloadavg()[0], of_agents()
    peak, cpu, began = Peak(), time.process_time(), time.monotonic()
    groups = list(rollout.play(tasks, step=1, split="train"))
    wall, cpu, theirs = time.monotonic() - began, time.process_time() - cpu, of_agents() - theirs
    rollout.close()
    gateway.close()
    assert all(group.scored and len(group.episodes[0].timelines) == 1 for group in groups)
    ideal = CALLS * latency
    calls = episodes * CALLS
    where = f"in {processes} processes" if processes else "in process"
    print(f"sdk: {len(groups)} episodes of {CALLS} calls through AsyncOpenAI {where}, {latency:g} s a call")
    print(f"  measured {wall:.1f} s, ideal {ideal:.1f} s: ratio {ideal / wall:.3f} (load {load:.0f} before)")
    beside = f" and {theirs / calls * 1e3:.2f} in the agents' processes" if processes else ""
    print(f"  CPU {cpu / calls * 1e3:.2f} ms a call here{beside}; ", end="")
    print(f"memory {peak.grown() / episodes / 1024:.1f} KiB an episode here")
    return ideal / wall


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--sdk-episodes", type=int, default=1_000)
    parser.add_argument("--latency", type=float, default=20.0)
    parser.add_argument("--processes", type=int, default=0, help="play the second part on `loops`")
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ratio = bench_turns(chosen.episodes, chosen.latency) if chosen.episodes else None
    if chosen.sdk_episodes:
        ideal = bench_sdk(chosen.sdk_episodes, chosen.latency, chosen.processes)
        kept("AsyncOpenAI agents against the ideal", ideal)
    if ratio is None:
        return 0
    return 0 if kept("turns against the ideal", ratio, at_least=LIMIT) else 1


if __name__ == "__main__":
    sys.exit(main())
