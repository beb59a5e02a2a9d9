"""EarlyAgentLoop: verl's agent-loop worker in a process that begins before verl asks for one.

verl starts its agent loops once engine and servers are there, one after the other; their imports take as long as any
of these, and all that while most cores wait. Invariant: nothing but imports is done before `begin`, which is verl's
own constructor; tasks that are handed over while it is at work wait for it.
"""

from __future__ import annotations

import asyncio
from typing import Any


class EarlyAgentLoop:
    """Made a Ray actor, before and where a worker of verl's would be one."""

    def __init__(self) -> None:
        import openai  # noqa: F401 - most agents', and as long in coming as the gateway
        import verl.trainer.ppo.v1  # noqa: F401

        import ajet_verl.agent.loop  # noqa: F401

        self._worker: Any = None
        self._is_built = asyncio.Event()

    async def begin(self, *parts: Any) -> None:
        """verl's constructor. Raises what it raises."""
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

        worker: Any = AgentLoopWorkerTQ
        try:  # in a thread, as it was in no event loop either
            self._worker = await asyncio.to_thread(worker.__ray_metadata__.modified_class, *parts)
        finally:
            self._is_built.set()

    async def generate_sequences(self, batch: Any) -> None:
        """verl's. Ray may call it before `begin`, whose arguments are the larger ones."""
        await self._is_built.wait()
        await self._worker.generate_sequences(batch)


def start_agent_loops(count: int) -> list[Any]:
    """So many, spread over the nodes."""
    return [start_agent_loop(f"agent_loop_{number}") for number in range(count)]


def start_agent_loop(name: str) -> Any:
    """Start an agent loop, whose name says what it is in logs."""
    import ray

    actor: Any = ray.remote(EarlyAgentLoop)
    return actor.options(name=name, scheduling_strategy="SPREAD").remote()
