"""Server: verl's inference server in a process that may begin before verl asks for it.

Ray has whoever gets an actor's handle load the class of the actor; of verl's own that takes all of vLLM, in the load
balancer and in each agent loop. Invariant: this module needs neither vLLM nor verl; only the process of a server
imports them. Nothing but imports is done before `begin`, so that no accelerator is touched until then; what is asked
earlier waits.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any


class EarlyServer:
    """Made a Ray actor, with methods that `named` adds."""

    def __init__(self) -> None:
        import verl.workers.rollout.vllm_rollout.vllm_async_server  # noqa: F401

        self._begun = asyncio.Event()
        self._made: Any = None

    async def begin(self, **parts: Any) -> None:
        """Have verl's constructor called; what it raises, whoever asks for something next is told."""
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

        self._made = asyncio.ensure_future(asyncio.to_thread(vLLMHttpServer, **parts))
        self._begun.set()

    async def _call_server(self, name: str, *args: Any, **kwargs: Any) -> Any:
        await self._begun.wait()
        answer = getattr(await self._made, name)(*args, **kwargs)
        return await answer if inspect.isawaitable(answer) else answer


def make_server_class(name: str, methods: Iterable[str]) -> type[EarlyServer]:
    """A server of that name whose methods are those of verl's."""
    return type(name, (EarlyServer,), {method: _forward_method(method) for method in methods})


def _forward_method(name: str) -> Callable[..., Awaitable[Any]]:
    async def method(self: EarlyServer, *args: Any, **kwargs: Any) -> Any:
        return await self._call_server(name, *args, **kwargs)

    return method
