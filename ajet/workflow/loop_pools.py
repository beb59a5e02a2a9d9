"""Connection pools per event loop for asynchronous HTTP clients.

SDKs share one HTTP client per process (openai-agents' provider, `ChatOpenAI`, a module's `AsyncOpenAI`), whose
connections belong to the event loop that opened them; each episode has its own loop. Invariants: settings, hooks,
cookies and transports of a client stay shared, only connections are separate. A loop's connections are closed with the
loop, or when the client is closed in the loop.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncGenerator
from typing import Any
from weakref import WeakKeyDictionary

_STATE = {"_connections", "_requests"}
"""Mutable lists of an httpcore pool; all other attributes are settings."""
_Pools = WeakKeyDictionary[Any, Any]
"""Pools of one loop by the pool with their settings."""
_loops: dict[asyncio.AbstractEventLoop, _Pools] = {}
_endings: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
_lock = threading.Lock()


def split_pools(holder: Any) -> None:
    """Give each event loop its own connections in all pools of an HTTP client or transport. Idempotent."""
    rest, seen = [holder], {id(holder)}
    while rest:
        holder = rest.pop()
        for name, value in list(vars(holder).items()):
            if isinstance(value, PoolPerLoop):
                continue
            if _is_sender(value) and vars(value).keys() >= _STATE:
                setattr(holder, name, PoolPerLoop(value))
                continue
            for each in value.values() if isinstance(value, dict) else (value,):
                if _is_sender(each) and id(each) not in seen:  # a transport, which may hold others: retries, proxies
                    seen.add(id(each))
                    rest.append(each)


class PoolPerLoop:
    """Takes the place of an httpcore pool in a transport and passes requests to the running loop's pool."""

    def __init__(self, settings: Any) -> None:
        """`settings`: the replaced pool; each loop has an empty copy of it."""
        self._settings = settings

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request by a connection of the running loop."""
        loop = _running_loop()
        if loop is None:
            return await self._settings.handle_async_request(request)
        pools = _loops.get(loop)
        if pools is None:
            pools = await _watch_loop(loop)
        pool = pools.get(self._settings)
        if pool is None:
            pool = pools[self._settings] = copy.copy(self._settings)
            pool.__dict__.update({name: [] for name in _STATE})
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        loop = _running_loop()
        pools = None if loop is None else _loops.get(loop)
        pool = None if pools is None else pools.pop(self._settings, None)
        await (pool or self._settings).aclose()

    async def __aenter__(self) -> PoolPerLoop:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _is_sender(value: object) -> bool:
    return hasattr(value, "handle_async_request") and hasattr(value, "__dict__")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running asyncio loop; None in trio, where a program has a single loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _watch_loop(loop: asyncio.AbstractEventLoop) -> _Pools:
    pools: _Pools = WeakKeyDictionary()
    ending = _close_at_end(loop, pools)
    await ending.__anext__()
    with _lock:
        for each in [each for each in _loops if each.is_closed()]:  # ended without closing its generators
            del _loops[each], _endings[each]
        _loops[loop], _endings[loop] = pools, ending
    return pools


async def _close_at_end(loop: asyncio.AbstractEventLoop, pools: _Pools) -> AsyncGenerator[None, None]:
    """Close the pools at the end of the loop: `asyncio.run` and similar runners close asynchronous generators."""
    try:
        yield
    finally:
        with _lock:
            _loops.pop(loop, None)
            _endings.pop(loop, None)
        for pool in list(pools.values()):
            await pool.aclose()
