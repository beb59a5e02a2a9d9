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
    """Store which attempt (`by`) an endpoint's key belongs to, and return the endpoint.

    Another attempt's request with this key is then refused.
    """
    _endpoints_by_key[endpoint.api_key] = by
    return endpoint


class RunEnvironment:
    """Environment variables of a run, set from the object's creation until `close`."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Set the variables of both SDKs to the gateway's address and the run's key, unless the user has set them.

        Requests with the run's key get the current episode's key from now on.

        Args:
            endpoint: The gateway's address with the run's key.
        """
        variables = endpoint.environment
        unset_brands = [brand for brand in _BRANDS if not any(os.environ.get(name) for name in brand)]
        set_names = [name for brand in unset_brands for name in brand]
        proxy_bypass = build_bypass(os.environ, urlsplit(endpoint.base_url).hostname or "")
        self._earlier_values = {name: os.environ.get(name) for name in (*set_names, *proxy_bypass)}
        os.environ.update(proxy_bypass)
        _watch_endpoint(endpoint)
        for name in set_names:
            # The user's own value, for models of other servers.
            os.environ[OUTSIDE + name] = self._earlier_values[name] or ""
            os.environ[name] = variables[name]
        self._key = endpoint.api_key

    def close(self) -> None:
        """Restore the environment variables, and after the last open run the HTTP clients. Idempotent."""
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
    """Give requests with this endpoint's key the current episode's key, in all HTTP clients of the process."""
    with _lock:
        _unbound_keys.add(endpoint.api_key)
        _hosts.add(urlsplit(endpoint.base_url).netloc)
        for library_name in _LIBRARIES:
            if find_spec(library_name) is not None:
                library: Any = import_module(library_name)
                _wrap_send(library.Client, _wrap_sync_send)
                _wrap_send(library.AsyncClient, _wrap_async_send)


def _wrap_send(client_class: Any, make_wrapper: Any) -> None:
    """Replace the method `send` of an HTTP client class once.

    Args:
        client_class: The class.
        make_wrapper: Returns the replacement for the original method.
    """
    if client_class not in _wrapped:
        original = client_class.send
        client_class.send = wraps(original)(make_wrapper(original))
        _wrapped[client_class] = (original, client_class.send)


def _unwrap_clients() -> None:
    """Restore the original `send` of the HTTP client classes.

    If another library has wrapped the method since, the replacement stays and passes requests unchanged.
    """
    for client_class, (original, wrapper) in list(_wrapped.items()):
        if client_class.send is wrapper:
            client_class.send = original
            del _wrapped[client_class]


def _wrap_sync_send(send: Any) -> Any:
    """Return a `send` that first gives the request the current episode's key."""

    def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        bind_request(request)
        return send(self, request, *args, **kwargs)

    return sends


def _wrap_async_send(send: Any) -> Any:
    """Return a `send` that first gives the request the current episode's key, and the client connections per loop."""

    async def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        # A client has its pools split on its first request; `_unbound_keys` is empty without a run.
        if _unbound_keys and self not in _split:
            split_pools(self)
            _split.add(self)
        bind_request(request)
        return await send(self, request, *args, **kwargs)

    return sends


def bind_request(request: Any) -> None:
    """Give a request to the gateway the key of the current episode; other requests stay unchanged.

    A key of the run, or of an attempt that is over in this process, is replaced. A key of another attempt is replaced
    by an invalid one, so that the gateway refuses the request.
    """
    if not _unbound_keys:
        return
    endpoints = _playing.get()
    if endpoints is None:  # outside of an episode: the gateway refuses the run's key
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
            # The episode's gateway may have another address than the one that the client was created with.
            headers[header], headers["host"] = prefix + endpoint.api_key, address.netloc
        elif _endpoints_by_key.get(key, endpoints) is not endpoints:
            headers[header] = prefix + FOREIGN_KEY


def _warn_of_foreign_host(url: Any) -> None:
    """Warn once of each host other than the gateway that gets a model call: perhaps an intended one, perhaps not."""
    if not url.path.endswith(_CALLS) or url.host in foreign_hosts:
        return
    foreign_hosts.add(url.host)
    variables_with_host = [
        name for name in _ADDRESSES if urlsplit(os.environ.get(name, "")).netloc == url.netloc.decode()
    ]
    message = (
        "an agent called a model at {} instead of the run's gateway, so its calls are neither trained nor "
        "recorded. To train this agent, give its "
    )
    message += "client `base_url` and `api_key` of `tuner.as_oai_baseurl_apikey()`"
    if variables_with_host:
        logger.warning(
            message + ", or unset {}, where it found this address",
            url.netloc.decode(),
            " and ".join(variables_with_host),
        )
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
    """Give each event loop its own connections in all connection pools of an HTTP client or transport.

    The pools, also those of nested transports, are found among the attributes by their interface. Idempotent.
    """
    holders, visited = [holder], {id(holder)}
    while holders:
        holder = holders.pop()
        for name, value in list(vars(holder).items()):
            if isinstance(value, PoolPerLoop):
                continue
            if _is_sender(value) and vars(value).keys() >= _STATE:
                setattr(holder, name, PoolPerLoop(value))
                continue
            for transport in value.values() if isinstance(value, dict) else (value,):
                # A transport may contain others, for retries or proxies.
                if _is_sender(transport) and id(transport) not in visited:
                    visited.add(id(transport))
                    holders.append(transport)


class PoolPerLoop:
    """Takes the place of an httpcore pool in a transport and passes requests to the running loop's pool."""

    def __init__(self, settings: Any) -> None:
        """Replace a pool. `settings`: the pool, of which each loop gets an empty copy with the same settings."""
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
    """Return True for an httpx transport or httpcore pool: an object that sends asynchronous requests."""
    return hasattr(value, "handle_async_request") and hasattr(value, "__dict__")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running asyncio loop; None in trio, where a program has a single loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _watch_loop(loop: asyncio.AbstractEventLoop) -> _Pools:
    """Return a new, empty mapping for a loop's pools, which are closed at the end of the loop."""
    pools: _Pools = WeakKeyDictionary()
    close_generator = _close_at_end(loop, pools)
    # An asynchronous generator that has begun is closed by the loop's runner at the loop's end.
    await close_generator.__anext__()
    with _pools_lock:
        # Loops that ended without closing their asynchronous generators.
        for ended_loop in [ended_loop for ended_loop in _loops if ended_loop.is_closed()]:
            del _loops[ended_loop], _endings[ended_loop]
        _loops[loop], _endings[loop] = pools, close_generator
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
