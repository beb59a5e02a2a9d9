"""Clients that were given nothing: `OpenAI()`, `AsyncAnthropic()`, whatever a library makes of the environment.

Invariants: the environment is written once a run, never for an episode, and only where the person has set no such
address and key: then it holds the gateway's address and one key of the run. A request that bears that key gets the key
of the episode in whose context (contextvars) it is sent, on its way through the SDKs' httpx, or none: then it reaches
the gateway with the run's key and is refused there, never answered under another episode's. Nor is one that bears a
key which the tuner of another attempt gave (a client that a module keeps). A worker process, which plays one attempt at
a time, has the attempt's own address and key in its environment (`entering`). Asynchronous clients that episodes share
have connections in each of their event loops (`split_pools`).
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
"""The agent that such a client is."""
_BRANDS = (("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY"), ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"))
"""Variables that are set together, or not at all."""
_ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")
_LIBRARIES = ("httpx", "httpx2")
"""What OpenAI's and Anthropic's SDKs send by, in this version of theirs or another."""
_CALLS = ("/chat/completions", "/completions", "/responses", "/messages")
_playing: ContextVar[Endpoints | None] = ContextVar("ajet_playing", default=None)
_lock = threading.Lock()
_untied: set[str] = set()
"""Keys that stand for whatever episode is playing in the sender's context: those of runs, and of attempts that were."""
_given: WeakValueDictionary[str, Endpoints] = WeakValueDictionary()
"""Whose the keys are that tuners gave."""
_split: WeakSet[Any] = WeakSet()
"""Clients whose connections belong to the event loop that they send in."""
_wrapped: dict[type[Any], tuple[Any, Any]] = {}
"""Class of an HTTP client -> its own `send`, and the one that replaces it while a run lasts: `OpenAI()` in a user's
agent reads the run's key, and only where the request is sent is it known which episode sends it."""
_hosts: set[str] = set()
_elsewhere: set[str] = set()


@contextmanager
def playing(endpoints: Endpoints) -> Iterator[None]:
    """Within the block, and in tasks and `asyncio.to_thread` begun in it, such clients are this episode's."""
    token = _playing.set(endpoints)
    try:
        yield
    finally:
        _playing.reset(token)


def given(endpoint: Endpoint, by: Endpoints) -> Endpoint:
    """The endpoint, which a tuner hands to the code of its attempt: its key is that attempt's alone."""
    _given[endpoint.api_key] = by
    return endpoint


class Ambient:
    """The environment of a run, from now until `close`. `endpoint`: the gateway's address with the run's key."""

    def __init__(self, endpoint: Endpoint) -> None:
        given = endpoint.environment
        taken = [brand for brand in _BRANDS if not any(os.environ.get(name) for name in brand)]
        names = [name for brand in taken for name in brand]
        bypass = build_bypass(os.environ, urlsplit(endpoint.base_url).hostname or "")
        self._before = {name: os.environ.get(name) for name in (*names, *bypass)}
        os.environ.update(bypass)
        _register_endpoint(endpoint)
        for name in names:
            os.environ[OUTSIDE + name] = self._before[name] or ""
            os.environ[name] = given[name]
        self._key = endpoint.api_key

    def close(self) -> None:
        """Put the environment variables back as they were, and httpx after the last run. Idempotent."""
        for name, value in self._before.items():
            os.environ.pop(OUTSIDE + name, None)
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
        with _lock:
            _untied.discard(self._key)
            if not _untied:
                _unwrap_clients()


def entering(endpoint: Endpoint) -> None:
    """This process plays one attempt, whose address and key these are: they go into its environment. Clients that were
    made for an earlier attempt of this process (when its module was imported, say) are this one's, too."""
    for name, value in endpoint.environment.items():
        os.environ.setdefault(OUTSIDE + name, os.environ.get(name, ""))
        os.environ[name] = value
    os.environ.update(build_bypass(os.environ, urlsplit(endpoint.base_url).hostname or ""))
    _register_endpoint(endpoint)


def _register_endpoint(endpoint: Endpoint) -> None:
    with _lock:
        _untied.add(endpoint.api_key)
        _hosts.add(urlsplit(endpoint.base_url).netloc)
        for name in _LIBRARIES:
            if find_spec(name) is not None:
                library: Any = import_module(name)
                _replace_send(library.Client, _wrap_sync_send)
                _replace_send(library.AsyncClient, _wrap_async_send)


def _replace_send(kind: Any, made: Any) -> None:
    if kind not in _wrapped:
        original = kind.send
        kind.send = wraps(original)(made(original))
        _wrapped[kind] = (original, kind.send)


def _unwrap_clients() -> None:
    """Put `send` back, except where another library has wrapped it since: ours then passes requests on as they are."""
    for kind, (original, ours) in list(_wrapped.items()):
        if kind.send is ours:
            kind.send = original
            del _wrapped[kind]


def _wrap_sync_send(send: Any) -> Any:
    def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        tie(request)
        return send(self, request, *args, **kwargs)

    return sends


def _wrap_async_send(send: Any) -> Any:
    async def sends(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if _untied and self not in _split:
            split_pools(self)
            _split.add(self)
        tie(request)
        return await send(self, request, *args, **kwargs)

    return sends


def tie(request: Any) -> None:
    """Give a request that bears a key of `_untied` the key of the episode that plays here, and one that bears a key of
    another attempt none that opens; leave any other alone."""
    if not _untied:
        return
    endpoints = _playing.get()
    if endpoints is None:
        return
    if request.url.netloc.decode() not in _hosts:
        _warn_of_host(request.url)
        return
    headers = request.headers
    for header, prefix in (("authorization", "Bearer "), ("x-api-key", ""), ("api-key", "")):
        key = headers.get(header, "").removeprefix(prefix)
        if key in _untied:
            endpoint = endpoints(AGENT, AGENT, None)
            place = urlsplit(endpoint.base_url)
            request.url = request.url.copy_with(scheme=place.scheme, host=place.hostname, port=place.port)
            headers[header], headers["host"] = prefix + endpoint.api_key, place.netloc
        elif _given.get(key, endpoints) is not endpoints:
            headers[header] = prefix + ANOTHERS


def _warn_of_host(url: Any) -> None:
    """Say once a host that an agent called a model elsewhere: it may be meant so, and it may be forgotten."""
    if not url.path.endswith(_CALLS) or url.host in _elsewhere:
        return
    _elsewhere.add(url.host)
    names = [name for name in _ADDRESSES if urlsplit(os.environ.get(name, "")).netloc == url.netloc.decode()]
    told = "an agent called a model at {}, which is neither tuned nor recorded; if it is the one to be tuned, give its "
    told += "client `base_url` and `api_key` of `tuner.as_oai_baseurl_apikey()`"
    if names:
        logger.warning(told + ", or unset {}, where it found this address", url.netloc.decode(), " and ".join(names))
    else:
        logger.warning(told, url.netloc.decode())
