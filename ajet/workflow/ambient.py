"""Clients without settings: `OpenAI()`, `AsyncAnthropic()`, the clients that libraries make of the environment.

Invariants: the environment is set once a run, never for an episode, and only variables that the person has not set: it
holds the gateway's address and one key of the run. A request with this key gets the key of the episode in whose context
(contextvars) it is sent, in the `send` of the SDKs' httpx; without an episode it keeps the run's key, which the gateway
refuses. A request with the key of another attempt (a client that a module stores) is refused too. A worker process that
plays one attempt at a time has the attempt's own address and key in its environment (`enter_attempt`). Asynchronous
clients that episodes share have connections in each of their event loops (`split_pools`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet, WeakValueDictionary

from loguru import logger

from ajet.client.proxies import build_bypass
from ajet.config.other_models import OUTSIDE
from ajet.schema.endpoint import ANOTHERS, Endpoint, Endpoints
from ajet.workflow.loop_pools import split_pools

AGENT = "default"
"""The agent of such clients."""
_BRANDS = (("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"), ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"))
"""Variables that are set together, or not at all: an address and its key."""
_ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")
_LIBRARIES = ("httpx", "httpx2")
"""HTTP libraries of OpenAI's and Anthropic's SDKs, in this version or another."""
_CALLS = ("/chat/completions", "/completions", "/responses", "/messages")
_bound_endpoints: ContextVar[Endpoints | None] = ContextVar("ajet_playing", default=None)
_lock = threading.Lock()
_shared_keys: set[str] = set()
"""Keys of the episode in the sender's context: those of runs, and of earlier attempts of this process."""
_endpoints_of_keys: WeakValueDictionary[str, Endpoints] = WeakValueDictionary()
"""Key that a tuner gave -> the attempt's endpoints."""
_split_clients: WeakSet[Any] = WeakSet()
"""Clients whose connections belong to the event loop in which they send."""
_replaced_sends: dict[type[Any], tuple[Any, Any]] = {}
"""Class of an HTTP client -> its own `send`, and the one that replaces it while a run lasts: `OpenAI()` in a user's
agent reads the run's key, and only where the request is sent is it known which episode sends it."""
_hosts: set[str] = set()
_warned_hosts: set[str] = set()


@contextmanager
def bind_endpoints(endpoints: Endpoints) -> Iterator[None]:
    """Give such clients to this episode within the block, its tasks and `asyncio.to_thread` calls."""
    token = _bound_endpoints.set(endpoints)
    try:
        yield
    finally:
        _bound_endpoints.reset(token)


def register_key(endpoint: Endpoint, by: Endpoints) -> Endpoint:
    """Register the key of an endpoint that a tuner gives to its attempt: other attempts may not use it."""
    _endpoints_of_keys[endpoint.api_key] = by
    return endpoint


class Ambient:
    """The environment variables of a run, until `close`."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Set the variables. `endpoint` has the gateway's address and the run's key."""
        variables = endpoint.environment
        taken = [brand for brand in _BRANDS if not any(os.environ.get(name) for name in brand)]
        names = [name for brand in taken for name in brand]
        bypass = build_bypass(os.environ, urlsplit(endpoint.base_url).hostname or "")
        self._before = {name: os.environ.get(name) for name in (*names, *bypass)}
        os.environ.update(bypass)
        _register_endpoint(endpoint)
        for name in names:
            os.environ[OUTSIDE + name] = self._before[name] or ""
            os.environ[name] = variables[name]
        self._key = endpoint.api_key

    def close(self) -> None:
        """Restore the environment variables, and httpx after the last run. Idempotent."""
        for name, value in self._before.items():
            os.environ.pop(OUTSIDE + name, None)
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
        with _lock:
            _shared_keys.discard(self._key)
            if not _shared_keys:
                _unwrap_clients()


def enter_attempt(endpoint: Endpoint) -> None:
    """Put the address and key of this process's only attempt into its environment.

    Clients of an earlier attempt of the process (made when a module was imported, say) belong to this one, too.
    """
    for name, value in endpoint.environment.items():
        os.environ.setdefault(OUTSIDE + name, os.environ.get(name, ""))
        os.environ[name] = value
    os.environ.update(build_bypass(os.environ, urlsplit(endpoint.base_url).hostname or ""))
    _register_endpoint(endpoint)


def _register_endpoint(endpoint: Endpoint) -> None:
    with _lock:
        _shared_keys.add(endpoint.api_key)
        _hosts.add(urlsplit(endpoint.base_url).netloc)
        for name in _LIBRARIES:
            if find_spec(name) is not None:
                library: Any = import_module(name)
                _replace_send(library.Client, _wrap_sync_send)
                _replace_send(library.AsyncClient, _wrap_async_send)


def _replace_send(kind: Any, made: Any) -> None:
    if kind not in _replaced_sends:
        original = kind.send
        kind.send = wraps(original)(made(original))
        _replaced_sends[kind] = (original, kind.send)


def _unwrap_clients() -> None:
    """Restore `send`, unless another library has wrapped it since: ours then passes requests on unchanged."""
    for kind, (original, ours) in list(_replaced_sends.items()):
        if kind.send is ours:
            kind.send = original
            del _replaced_sends[kind]


def _wrap_sync_send(send: Any) -> Any:
    def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        rewrite_key(request)
        return send(self, request, *args, **kwargs)

    return sends


def _wrap_async_send(send: Any) -> Any:
    async def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if _shared_keys and self not in _split_clients:
            split_pools(self)
            _split_clients.add(self)
        rewrite_key(request)
        return await send(self, request, *args, **kwargs)

    return sends


def rewrite_key(request: Any) -> None:
    """Give a request with a key of `_shared_keys` the key of the episode in whose context it is sent.

    A request with the key of another attempt gets one that the gateway refuses. Others are unchanged.
    """
    if not _shared_keys:
        return
    endpoints = _bound_endpoints.get()
    if endpoints is None:
        return
    if request.url.netloc.decode() not in _hosts:
        _warn_of_host(request.url)
        return
    headers = request.headers
    for header, prefix in (("authorization", "Bearer "), ("x-api-key", ""), ("api-key", "")):
        key = headers.get(header, "").removeprefix(prefix)
        if key in _shared_keys:
            endpoint = endpoints(AGENT, AGENT, None)
            place = urlsplit(endpoint.base_url)
            request.url = request.url.copy_with(scheme=place.scheme, host=place.hostname, port=place.port)
            headers[header], headers["host"] = prefix + endpoint.api_key, place.netloc
        elif _endpoints_of_keys.get(key, endpoints) is not endpoints:
            headers[header] = prefix + ANOTHERS


def _warn_of_host(url: Any) -> None:
    """Warn once a host that an agent called a model outside of the gateway: it may be intended, or forgotten."""
    if not url.path.endswith(_CALLS) or url.host in _warned_hosts:
        return
    _warned_hosts.add(url.host)
    names = [name for name in _ADDRESSES if urlsplit(os.environ.get(name, "")).netloc == url.netloc.decode()]
    message = "an agent called a model at {}, which is neither tuned nor recorded; if it is the one to be tuned, give "
    message += "its client `base_url` and `api_key` of `tuner.as_oai_baseurl_apikey()`"
    if names:
        logger.warning(message + ", or unset {}, where it found this address", url.netloc.decode(), " and ".join(names))
    else:
        logger.warning(message, url.netloc.decode())
