"""Binds clients created without address and key: `OpenAI()`, `AsyncAnthropic()`, and clients within libraries.

Invariants: the environment is written once per run, only for variables unset by the user, with the gateway's address
and a key of the run. A request with the run's key gets the key of the episode in whose context (contextvars) the
request is sent, within the SDKs' httpx. Without an episode the gateway refuses the request; no request is served under
another episode's key, also with a key of another attempt's tuner (a client stored in a module). A worker process plays
one attempt at a time and has the attempt's address and key in its environment (`enter_attempt`). Shared asynchronous
clients get connections per event loop (`split_pools`).
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from loguru import logger

from ajet.client.proxies import build_bypass
from ajet.config.other_models import OUTSIDE
from ajet.schema.endpoint import FOREIGN_KEY, Endpoint, Endpoints

AGENT = "default"
"""Agent name of such clients."""
_BRANDS = (("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"), ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"))
"""Variables that are set together, or not at all."""
_ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")
_LIBRARIES = ("httpx", "httpx2")
"""HTTP libraries of the SDKs of OpenAI and Anthropic, by version."""
_CALLS = ("/chat/completions", "/completions", "/responses", "/messages")
_playing: ContextVar[Endpoints | None] = ContextVar("ajet_playing", default=None)
_lock = threading.Lock()
_unbound_keys: set[str] = set()
"""Keys replaced by the key of the current episode: keys of runs and of finished attempts."""
_endpoints_by_key: WeakValueDictionary[str, Endpoints] = WeakValueDictionary()
"""Endpoints of each key handed out by a tuner."""
_split: WeakSet[Any] = WeakSet()
"""Clients with connections per event loop."""
_wrapped: dict[type[Any], tuple[Any, Any]] = {}
"""HTTP client class -> (original `send`, replacement during a run).

The episode of an `OpenAI()` client in user code is known only when a request is sent.
"""
_hosts: set[str] = set()
foreign_hosts: set[str] = set()


@contextmanager
def use_endpoints(endpoints: Endpoints) -> Iterator[None]:
    """Make the episode's endpoints current within the block, including its tasks and `asyncio.to_thread` calls."""
    token = _playing.set(endpoints)
    try:
        yield
    finally:
        _playing.reset(token)


def register_endpoint(endpoint: Endpoint, by: Endpoints) -> Endpoint:
    """Remember the attempt of an endpoint's key and return the endpoint."""
    _endpoints_by_key[endpoint.api_key] = by
    return endpoint


class RunEnvironment:
    """The environment of a run, from now until `close`. `endpoint`: the gateway's address with the run's key."""

    def __init__(self, endpoint: Endpoint) -> None:
        variables = endpoint.environment
        unset_brands = [brand for brand in _BRANDS if not any(os.environ.get(name) for name in brand)]
        names = [name for brand in unset_brands for name in brand]
        bypass = build_bypass(os.environ, urlsplit(endpoint.base_url).hostname or "")
        self._earlier_values = {name: os.environ.get(name) for name in (*names, *bypass)}
        os.environ.update(bypass)
        _watch_endpoint(endpoint)
        for name in names:
            os.environ[OUTSIDE + name] = self._earlier_values[name] or ""
            os.environ[name] = variables[name]
        self._key = endpoint.api_key

    def close(self) -> None:
        """Put the environment variables back as they were, and httpx after the last run. Idempotent."""
        for name, value in self._earlier_values.items():
            os.environ.pop(OUTSIDE + name, None)
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._earlier_values = {}
        with _lock:
            _unbound_keys.discard(self._key)
            if not _unbound_keys:
                _unwrap_clients()


def enter_attempt(endpoint: Endpoint) -> None:
    """Put the address and key of this process' attempt into the environment.

    Clients created for an earlier attempt of the process (at the import of a module, for example) use the new key too.
    """
    for name, value in endpoint.environment.items():
        os.environ.setdefault(OUTSIDE + name, os.environ.get(name, ""))
        os.environ[name] = value
    os.environ.update(build_bypass(os.environ, urlsplit(endpoint.base_url).hostname or ""))
    _watch_endpoint(endpoint)


def _watch_endpoint(endpoint: Endpoint) -> None:
    with _lock:
        _unbound_keys.add(endpoint.api_key)
        _hosts.add(urlsplit(endpoint.base_url).netloc)
        for name in _LIBRARIES:
            if find_spec(name) is not None:
                library: Any = import_module(name)
                _wrap_send(library.Client, _wrap_sync_send)
                _wrap_send(library.AsyncClient, _wrap_async_send)


def _wrap_send(kind: Any, made: Any) -> None:
    if kind not in _wrapped:
        original = kind.send
        kind.send = wraps(original)(made(original))
        _wrapped[kind] = (original, kind.send)


def _unwrap_clients() -> None:
    """Restore `send`, unless another library has wrapped the method since; our wrapper then passes requests
    unchanged."""
    for kind, (original, wrapper) in list(_wrapped.items()):
        if kind.send is wrapper:
            kind.send = original
            del _wrapped[kind]


def _wrap_sync_send(send: Any) -> Any:
    def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        bind_request(request)
        return send(self, request, *args, **kwargs)

    return sends


def _wrap_async_send(send: Any) -> Any:
    async def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if _unbound_keys and self not in _split:
            split_pools(self)
            _split.add(self)
        bind_request(request)
        return await send(self, request, *args, **kwargs)

    return sends


def bind_request(request: Any) -> None:
    """Replace a key of `_unbound_keys` by the key of the current episode, and a key of another attempt by an invalid
    key."""
    if not _unbound_keys:
        return
    endpoints = _playing.get()
    if endpoints is None:
        return
    if request.url.netloc.decode() not in _hosts:
        _warn_of_foreign_host(request.url)
        return
    headers = request.headers
    for header, prefix in (("authorization", "Bearer "), ("x-api-key", ""), ("api-key", "")):
        key = headers.get(header, "").removeprefix(prefix)
        if key in _unbound_keys:
            endpoint = endpoints(AGENT, AGENT, None)
            address = urlsplit(endpoint.base_url)
            request.url = request.url.copy_with(scheme=address.scheme, host=address.hostname, port=address.port)
            headers[header], headers["host"] = prefix + endpoint.api_key, address.netloc
        elif _endpoints_by_key.get(key, endpoints) is not endpoints:
            headers[header] = prefix + FOREIGN_KEY


def _warn_of_foreign_host(url: Any) -> None:
    """Log a model call to a foreign host once; the call may be intended or a forgotten setting."""
    if not url.path.endswith(_CALLS) or url.host in foreign_hosts:
        return
    foreign_hosts.add(url.host)
    names = [name for name in _ADDRESSES if urlsplit(os.environ.get(name, "")).netloc == url.netloc.decode()]
    message = (
        "an agent called a model at {} instead of the run's gateway, so its calls are neither trained nor "
        "recorded. To train this agent, give its "
    )
    message += "client `base_url` and `api_key` of `tuner.as_oai_baseurl_apikey()`"
    if names:
        logger.warning(message + ", or unset {}, where it found this address", url.netloc.decode(), " and ".join(names))
    else:
        logger.warning(message, url.netloc.decode())


# Connection pools per event loop for asynchronous HTTP clients.
# SDKs share one HTTP client per process (openai-agents' provider, `ChatOpenAI`, a module's `AsyncOpenAI`), whose
# connections belong to the event loop that opened them; each episode has its own loop. Invariants: settings, hooks,
# cookies and transports of a client stay shared, only connections are separate. A loop's connections are closed
# with the loop, or when the client is closed in the loop.
_STATE = {"_connections", "_requests"}
"""Mutable lists of an httpcore pool; all other attributes are settings."""
_Pools = WeakKeyDictionary[Any, Any]
"""Pools of one loop by the pool with their settings."""
_loops: dict[asyncio.AbstractEventLoop, _Pools] = {}
_endings: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
_pools_lock = threading.Lock()


def split_pools(holder: Any) -> None:
    """Give each event loop its own connections in all pools of an HTTP client or transport. Idempotent."""
    rest, visited = [holder], {id(holder)}
    while rest:
        holder = rest.pop()
        for name, value in list(vars(holder).items()):
            if isinstance(value, PoolPerLoop):
                continue
            if _is_sender(value) and vars(value).keys() >= _STATE:
                setattr(holder, name, PoolPerLoop(value))
                continue
            for each in value.values() if isinstance(value, dict) else (value,):
                if _is_sender(each) and id(each) not in visited:  # a transport, which may hold others: retries, proxies
                    visited.add(id(each))
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
    with _pools_lock:
        for each in [each for each in _loops if each.is_closed()]:  # ended without closing its generators
            del _loops[each], _endings[each]
        _loops[loop], _endings[loop] = pools, ending
    return pools


async def _close_at_end(loop: asyncio.AbstractEventLoop, pools: _Pools) -> AsyncGenerator[None, None]:
    """Close the pools at the end of the loop: `asyncio.run` and similar runners close asynchronous generators."""
    try:
        yield
    finally:
        with _pools_lock:
            _loops.pop(loop, None)
            _endings.pop(loop, None)
        for pool in list(pools.values()):
            await pool.aclose()
