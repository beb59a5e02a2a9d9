"""EarlyServer: verl's inference server in a process started before verl requests the server.

Ray loads the actor class in each process with a handle. verl's own class would load all of vLLM in the load balancer
and in each agent loop. Invariants: this module needs neither vLLM nor verl, and only a server's process imports them.
Before `begin` only imports run, so no accelerator is touched. Earlier requests wait.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any


class EarlyServer:
    """Ray actor, with methods added by `make_server_class`."""

    def __init__(self) -> None:
        import verl.workers.rollout.vllm_rollout.vllm_async_server  # noqa: F401

        self._has_begun = asyncio.Event()
        self._server_future: Any = None

    async def begin(self, **parts: Any) -> None:
        """Run verl's constructor in a thread; later requests raise its exceptions."""
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

        self._server_future = asyncio.ensure_future(asyncio.to_thread(vLLMHttpServer, **parts))
        self._has_begun.set()

    async def _call_server(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of verl's server by name once its constructor has finished, and return the result."""
        await self._has_begun.wait()
        result = getattr(await self._server_future, name)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result


def make_server_class(name: str, methods: Iterable[str]) -> type[EarlyServer]:
    """Return a server class of this name with the methods of verl's server."""
    return type(name, (EarlyServer,), {method: _forward_method(method) for method in methods})


def _forward_method(name: str) -> Callable[..., Awaitable[Any]]:
    """Return an async method that passes its call to the method of verl's server with this name."""

    async def method(self: EarlyServer, *args: Any, **kwargs: Any) -> Any:
        return await self._call_server(name, *args, **kwargs)

    return method
