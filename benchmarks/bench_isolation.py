"""Isolation: how long a turn at the gateway takes while agents run in processes of their own beside it.

Each agent plays one episode of 5 calls through AsyncOpenAI over the gateway's loopback port, all of them at once, each
in a process (or in a sandbox) that is started for it. Beside them somebody asks the gateway for a turn, in process,
again and again, with a pause of 50 ms: the time of a turn as a median and two percentiles, while the processes start
and while they talk, against the same before the first of them. Printed too: processor time of the agents (of those in
processes: a sandbox does not hand it on) and of this process, and by how much the machine's available memory shrank, at
most. The engine takes no time. `--starts` is how many agents may start at once for each processor (2; 1000: all). No
limit: time by the clock and memory are those of whatever else runs on the machine, too.

    python benchmarks/bench_isolation.py [--agents N] [--isolation process|sandbox] [--starts N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from direct_call import call_model
from ratios import kept

from ajet.config import Experiment
from ajet.engine.contract import Sampling
from ajet.gateway import Gateway
from ajet.rollout import Rollout
from ajet.rollout.isolation import process
from ajet.schema.task import Task
from benchmarks.bench_rollout import CALLS, Talks, a_gateway, of_agents, opening
from tests.support.rollouts import AnswerJudge

PAUSE_S = 0.05


class Asks:
    """Asks for turns until it is told to end, from a thread of its own, and looks at the machine's memory."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.took: list[float] = []
        """Seconds of each turn."""
        self.least = psutil.virtual_memory().available
        """Bytes of memory that were available, at least; looked at every second."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._over.wait(PAUSE_S):
            number = len(self.took)
            session = self._gateway.open(
                f"ask-{id(self)}-{number}", key=(1, number, 0), sampling=Sampling(64), trainable=None
            )
            began = time.perf_counter()
            self._gateway.call(call_model(session, opening(number))).result()
            self.took.append(time.perf_counter() - began)
            session.close()
            if number % 20 == 0:
                self.least = min(self.least, psutil.virtual_memory().available)

    def end(self) -> list[float]:
        """All of them, in milliseconds."""
        self._over.set()
        self._thread.join()
        return [1e3 * seconds for seconds in self.took]


def said(name: str, took: Sequence[float]) -> str:
    """One line of percentiles."""
    shares = statistics.quantiles(took, n=100)
    return f"{name:8} p50 {shares[49]:7.1f} ms  p90 {shares[89]:7.1f} ms  p99 {shares[98]:7.1f} ms  ({len(took)} turns)"


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--isolation", choices=("process", "sandbox"), default="process")
    parser.add_argument("--starts", type=int, default=process.STARTS_PER_PROCESSOR)
    chosen = parser.parse_args()
    process.STARTS_PER_PROCESSOR = chosen.starts
    settings = {
        "isolation": chosen.isolation, "max_env_worker": chosen.agents, "num_repeat": 1, "episode_timeout": None,
        "user_workflow": "benchmarks.bench_rollout->Talks",
    }  # fmt: skip
    experiment = Experiment.from_dict({"ajet": {"rollout": settings}}, base=Path(__file__).parent)
    gateway = a_gateway(0.0)
    asks = Asks(gateway)
    time.sleep(5)
    alone = asks.end()
    rollout = Rollout(experiment, gateway, Talks, cast(Any, AnswerJudge()), run_id="bench")
    tasks = [(order, Task(main_query="sum", task_id=str(order))) for order in range(chosen.agents)]
    own, began, memory = time.process_time(), time.monotonic(), psutil.virtual_memory().available
    asks = Asks(gateway)
    groups = list(rollout.play(tasks, step=0, split="train"))
    wall, own = time.monotonic() - began, time.process_time() - own
    beside = asks.end()
    theirs = of_agents()
    rollout.close()
    gateway.close()
    assert all(group.scored for group in groups)
    print(f"{len(groups)} agents of {CALLS} calls, isolation {chosen.isolation}: {wall:.1f} s by the clock")
    of_each = f"agents {theirs / chosen.agents:.2f} s each, " if chosen.isolation == "process" else ""
    print(f"processor time: {of_each}here {own:.1f} s; memory: {(memory - asks.least) / (1 << 30):.1f} GB at most")
    print(said("alone", alone))
    print(said("beside", beside))
    kept(f"median turn beside agents in a {chosen.isolation}", statistics.median(beside) / statistics.median(alone))


if __name__ == "__main__":
    main()
