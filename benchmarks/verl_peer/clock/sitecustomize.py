"""When what happened, in every process of a launch: a line of JSON each, into the file that VERL_BENCH_CLOCK names.

Python imports this module by itself where its folder is on PYTHONPATH, so both sides of bench_verl.py are timed by the
same clock at the same functions of verl, Ray and vLLM, none of which behaves otherwise for it.
"""

import functools
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

FILE = os.environ.get("VERL_BENCH_CLOCK", "")
_once: set[str] = set()


def tell(event: str, once: bool = True, **more: Any) -> None:
    if once and event in _once:
        return
    _once.add(event)
    with open(FILE, "a") as file:
        file.write(json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **more}) + "\n")


def around(owner: Any, name: str, before: str = "", after: str = "", once: bool = True) -> None:
    """`owner.name` tells when it begins and when it has ended."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        if before:
            tell(before, once)
        answer = inner(*args, **kwargs)
        if after:
            tell(after, once)
        return answer

    setattr(owner, name, outer)


def ray_loaded(module: Any) -> None:
    around(module, "init", "Ray asked", "Ray there")


def trainer_loaded(module: Any) -> None:
    trainer = module.PPOTrainer
    around(trainer, "__init__", "trainer imported")
    around(trainer, "_init_resource_pool_mgr", "data there")
    around(module, "RewardLoopManager", "FSDP there")
    around(trainer, "_load_checkpoint", "server there")
    around(trainer, "fit", "agent loops asked")
    around(trainer, "_submit_batch_to_rollout", "dispatch", once=False)
    around(module.ReplayBuffer, "sample", after="sampled", once=False)
    inner = trainer._compute_metrics

    @functools.wraps(inner)
    def metrics(self: Any, batch: Any, metrics: Any, timing_raw: dict, *args: Any, **kwargs: Any) -> Any:
        tell("step", once=False, timing=dict(timing_raw))
        return inner(self, batch, metrics, timing_raw, *args, **kwargs)

    trainer._compute_metrics = metrics


def agent_loop_loaded(module: Any) -> None:
    worker = module.AgentLoopWorker
    around(worker, "__init__", "agent loop imported", "agent loop there")
    inner = worker._run_agent_loop

    @functools.wraps(inner)
    async def run(*args: Any, **kwargs: Any) -> Any:
        tell("first session")
        try:
            return await inner(*args, **kwargs)
        finally:
            tell("session over", once=False)

    worker._run_agent_loop = run


def engine_loaded(module: Any) -> None:
    inner = module.AsyncLLM.generate

    @functools.wraps(inner)
    async def generate(*args: Any, **kwargs: Any) -> Any:
        tell("first request")
        async for output in inner(*args, **kwargs):
            tell("first token")
            yield output

    module.AsyncLLM.generate = generate


WATCHED: dict[str, Callable[[Any], None]] = {
    "ray": ray_loaded,
    "verl.trainer.ppo.v1.trainer_base": trainer_loaded,
    "verl.experimental.agent_loop.agent_loop": agent_loop_loaded,
    "vllm.v1.engine.async_llm": engine_loaded,
}


class Finder:
    """Finds nothing itself; sees to it that the watched modules are timed once they are loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        loaded = WATCHED.get(name)
        if loaded is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            loaded(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FILE:
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
