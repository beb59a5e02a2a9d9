"""EarlyAgentLoop: verl's agent-loop worker in a process started before verl requests the worker.

verl starts its agent loops one after the other, after engine and servers, while most cores are idle, and their imports
take as long as any other part of the start. Invariants: before `begin`, verl's own constructor, only imports run. Tasks
received during the constructor wait for its end.
"""

from __future__ import annotations

import asyncio
from typing import Any


class EarlyAgentLoop:
    """Ray actor started early in place of verl's agent-loop worker."""

    def __init__(self) -> None:
        """Import what verl's worker needs, which takes most of the start, and wait for `begin`."""
        import openai  # noqa: F401 - used by most agents, and as slow to import as the gateway
        import verl.trainer.ppo.v1  # noqa: F401

        import ajet_verl.agent.loop  # noqa: F401

        self._worker: Any = None
        self._is_built = asyncio.Event()

    async def begin(self, *parts: Any) -> None:
        """Run the constructor of verl's agent-loop worker.

        Args:
            parts: the constructor's arguments.

        Raises:
            Exception: any exception of the constructor.
        """
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

        worker: Any = AgentLoopWorkerTQ
        # The constructor runs in a thread, because verl also runs it outside an event loop.
        try:
            self._worker = await asyncio.to_thread(worker.__ray_metadata__.modified_class, *parts)
        finally:
            self._is_built.set()

    async def generate_sequences(self, batch: Any) -> None:
        """Pass a batch of tasks to verl's worker.

        The call waits for `begin`, because Ray may deliver the larger arguments of `begin` later.
        """
        await self._is_built.wait()
        await self._worker.generate_sequences(batch)


def start_agent_loops(count: int) -> list[Any]:
    """Start `count` processes for agent loops, spread over the nodes, and return their actors."""
    return [start_agent_loop(f"agent_loop_{number}") for number in range(count)]


def start_agent_loop(name: str) -> Any:
    """Start a process for an agent loop, and return its actor. The process's log carries `name`."""
    import ray

    actor: Any = ray.remote(EarlyAgentLoop)
    return actor.options(name=name, scheduling_strategy="SPREAD").remote()
