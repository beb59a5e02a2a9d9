"""RemoteServer: a server elsewhere and its key, asked over HTTP from any event loop.

Invariant: a client belongs to one loop and is closed there; the key stands in no message. A server that takes a
request and then sends nothing is given up after its seconds, by name, and said so to whoever watches.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from weakref import WeakKeyDictionary

import httpx
from loguru import logger

from ajet.record.rate_limiter import RateLimiter
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import EngineFailure, EngineHangs, UserError

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
SILENCE = 300.0
"""Seconds for which a server may send nothing, unless its settings say otherwise."""
CONNECT = 20.0
"""Seconds to connect to it, at most."""
HANG_LOG_INTERVAL = 60.0
"""Seconds before it is said again that one hangs."""
MOST_VALUES = 8_000_000
"""Keys and values of a reply: those of 32,000 tokens with twenty alternatives each are 5 million."""
RETRYABLE = {408, 409, 425, 429}


class ServerAwayError(UserError):
    """The server did not answer: it may be being started again."""


def choose_error_type(problem: Exception) -> type[UserError]:
    """What it is that a server's first answers are not to be had: ServerAwayError where they may come later, which they
    do not at an address without http:// or with a key that is none."""
    never = isinstance(problem, (httpx.UnsupportedProtocol, httpx.LocalProtocolError))
    return ServerAwayError if isinstance(problem, httpx.TransportError) and not never else UserError


EPISODE_SHARE = 0.8
"""Of an episode's time that its server may be silent: an end of the time itself could be a slow model's."""


def limit_silence(seconds: float, key: str, episode: float | None) -> tuple[float, str]:
    """How long a server may be silent to which the setting `key` gives so many seconds, and what says so. `episode`:
    seconds of a whole attempt; None: it has no limit."""
    if episode is None or seconds <= EPISODE_SHARE * episode:
        return seconds, key
    return EPISODE_SHARE * episode, f"{key}, at most {EPISODE_SHARE:g} of rollout.episode_timeout"


def build_timeout(seconds: float) -> httpx.Timeout:
    """The timeouts of a client whose server may send nothing for so long."""
    return httpx.Timeout(seconds, connect=min(CONNECT, seconds))


class RemoteServer:
    """At `base_url`. Thread-safe. `silence`: seconds for which it may send nothing; `named`: the setting that says
    so."""

    def __init__(self, base_url: str, key: str | None, *, silence: float = SILENCE, named: str = "") -> None:
        self.base_url, self.silence = base_url, silence
        self._timeout_key, self._hang_log_limit = named, RateLimiter(HANG_LOG_INTERVAL)
        self._key = key
        self._lock = threading.Lock()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request: the key, if there is one."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def client(self, **more: Any) -> httpx.AsyncClient:
        """The HTTP client of the running loop; `more`: arguments for httpx when it is made."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._clients:
                made = httpx.AsyncClient(
                    base_url=self.base_url,
                    headers=self.headers,
                    timeout=build_timeout(self.silence),
                    limits=LIMITS,
                    **more,
                )
                self._clients[loop] = made
            return self._clients[loop]

    def close(self) -> None:
        """Release connections. Idempotent."""
        with self._lock:
            clients, self._clients = dict(self._clients), WeakKeyDictionary()
        for loop, client in clients.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_close_soon, client)

    def parsed(self, data: str) -> dict[str, Any]:
        """What it sent. Raises EngineFailure for no JSON object, and for what says that it failed: an SGLang server
        begins to stream before it has looked at the request, and refuses it within the stream."""
        try:
            event = load_json(data, most=MOST_VALUES)
        except ValueError as problem:
            raise EngineFailure(f"{self.base_url} sent what is no JSON: {self.clean(data)[:200]!r}") from problem
        if not isinstance(event, dict) or "error" in event:
            detail = event.get("error") if isinstance(event, dict) else None
            status = detail.get("code") if isinstance(detail, dict) else None
            raise EngineFailure(
                f"{self.base_url} failed while it answered: {self.clean(str(event))}",
                retryable=not isinstance(status, int) or _is_retryable(status),
            )
        return event

    def refused(self, status: int, text: str) -> EngineFailure:
        """The failure that an answer with this status means."""
        message = f"{self.base_url} refused with status {status}: {self.clean(text)}"
        return EngineFailure(message, retryable=_is_retryable(status))

    def unreachable(self, problem: httpx.HTTPError, *, begun: bool = False) -> EngineFailure:
        """The failure of a server that did not answer, or not to its end. `begun`: some of its reply came."""
        if isinstance(problem, (httpx.ReadTimeout, httpx.WriteTimeout)):
            return self.hangs(begun=begun)
        if begun:
            why = f"{type(problem).__name__}: {self.clean(str(problem))}"
            return EngineFailure(f"{self.base_url} broke off its reply: {why}")
        return EngineFailure(f"{self.base_url} did not answer: {type(problem).__name__}: {self.clean(str(problem))}")

    def hangs(self, *, begun: bool = False) -> EngineHangs:
        """The failure of a server that sends nothing; it is also said, though not all the time."""
        what = "began its reply and then" if begun else "took the request and"
        limit = f" ({self._timeout_key})" if self._timeout_key else ""
        message = f"{self.base_url} hangs: it {what} sent nothing for {self.silence:g} s{limit}"
        if self._hang_log_limit.is_due():
            raise_it = f", or raise {self._timeout_key} where its replies take longer" if self._timeout_key else ""
            logger.warning("{}; look at that server{}", message, raise_it)
        return EngineHangs(message)

    def clean(self, text: str) -> str:
        """Without the key, and not long."""
        return (text.replace(self._key, "[redacted]") if self._key else text)[:500]


def _is_retryable(status: int) -> bool:
    """Whether the same request, sent again, may get another answer."""
    return status >= 500 or status in RETRYABLE


def _close_soon(client: httpx.AsyncClient) -> None:
    asyncio.get_running_loop().create_task(client.aclose())
