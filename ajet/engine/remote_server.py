"""RemoteServer: HTTP connections to a remote server with a key, usable from any event loop.

Invariant: each client belongs to one loop and is closed there. The key never appears in messages. A request without any
data for `silence` seconds fails with an error that names the server, and a warning is logged.
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
"""Default for the maximum seconds without data from a server."""
CONNECT = 20.0  # seconds
HANG_LOG_INTERVAL = 60.0
"""Minimum seconds between two warnings about a hanging server."""
MOST_VALUES = 8_000_000
"""Maximum keys and values of a response; 32,000 tokens with twenty alternatives each need 5 million."""
RETRYABLE = {408, 409, 425, 429}
AWAY = 600.0
"""Seconds of absence of an inference server before its samplers end."""


class ServerAwayError(UserError):
    """The server did not answer; it may be restarting."""


def choose_error_type(problem: Exception) -> type[UserError]:
    """Return the error type for a failed first request.

    ServerAwayError means that a later try may succeed: not with an invalid URL scheme or key.
    """
    never = isinstance(problem, (httpx.UnsupportedProtocol, httpx.LocalProtocolError))
    return ServerAwayError if isinstance(problem, httpx.TransportError) and not never else UserError


EPISODE_SHARE = 0.8
"""Maximum share of the episode's timeout for silence: at the full timeout, a slow model would look the same."""


def limit_silence(seconds: float, key: str, episode: float | None) -> tuple[float, str]:
    """Return the allowed seconds without data from the server, and the setting that limits them.

    Args:
        seconds: value of the setting `key`.
        episode: seconds allowed for a complete attempt; None for no limit.
    """
    if episode is None or seconds <= EPISODE_SHARE * episode:
        return seconds, key
    return EPISODE_SHARE * episode, f"{key}, and at most {EPISODE_SHARE:g} of rollout.episode_timeout"


def build_timeout(seconds: float) -> httpx.Timeout:
    """Return a client's timeouts for a server that may be silent for `seconds`."""
    return httpx.Timeout(seconds, connect=min(CONNECT, seconds))


class RemoteServer:
    """HTTP client of the model server at `base_url`. Thread-safe.

    Args:
        silence: seconds without data after which a request fails.
        named: name of the setting of `silence`, for messages.
    """

    def __init__(self, base_url: str, key: str | None, *, silence: float = SILENCE, named: str = "") -> None:
        self.base_url, self.silence = base_url, silence
        self._timeout_key, self._hang_log_limit = named, RateLimiter(HANG_LOG_INTERVAL)
        self._key = key
        self._lock = threading.Lock()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    @property
    def headers(self) -> dict[str, str]:
        """Request headers with the key, if set."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def client(self, **more: Any) -> httpx.AsyncClient:
        """Return the HTTP client of the running loop. `more`: httpx arguments for a new client."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._clients:
                new_client = httpx.AsyncClient(
                    base_url=self.base_url,
                    headers=self.headers,
                    timeout=build_timeout(self.silence),
                    limits=LIMITS,
                    **more,
                )
                self._clients[loop] = new_client
            return self._clients[loop]

    def close(self) -> None:
        """Release all connections. Further calls have no effect."""
        with self._lock:
            clients, self._clients = dict(self._clients), WeakKeyDictionary()
        for loop, client in clients.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_close_soon, client)

    def parse_event(self, data: str) -> dict[str, Any]:
        """Parse a JSON object sent by the server.

        SGLang starts the stream before checking the request, so a refusal may arrive within the stream.

        Raises:
            EngineFailure: the data is not a JSON object, or reports an error.
        """
        try:
            event = load_json(data, limit=MOST_VALUES)
        except ValueError as problem:
            raise EngineFailure(f"{self.base_url} sent invalid JSON: {self.clean(data)[:200]!r}") from problem
        if not isinstance(event, dict) or "error" in event:
            detail = event.get("error") if isinstance(event, dict) else None
            status = detail.get("code") if isinstance(detail, dict) else None
            raise EngineFailure(
                f"{self.base_url} failed during its reply: {self.clean(str(event))}",
                retryable=not isinstance(status, int) or _is_retryable(status),
            )
        return event

    def make_refusal_error(self, status: int, text: str) -> EngineFailure:
        """Return the failure for an HTTP error status."""
        message = f"{self.base_url} refused the request with status {status}: {self.clean(text)}"
        return EngineFailure(message, retryable=_is_retryable(status))

    def make_connection_error(self, problem: httpx.HTTPError, *, begun: bool = False) -> EngineFailure:
        """Return the failure for a missing or incomplete response. `begun`: part of the reply arrived."""
        if isinstance(problem, (httpx.ReadTimeout, httpx.WriteTimeout)):
            return self.make_hang_error(begun=begun)
        if begun:
            reason = f"{type(problem).__name__}: {self.clean(str(problem))}"
            return EngineFailure(f"{self.base_url} closed the connection before the reply was complete: {reason}")
        return EngineFailure(f"{self.base_url} did not answer: {type(problem).__name__}: {self.clean(str(problem))}")

    def make_hang_error(self, *, begun: bool = False) -> EngineHangs:
        """Return the failure for a server that sends no data, and log a rate-limited warning.

        Args:
            begun: True if part of the reply arrived.
        """
        progress = "began its reply and then" if begun else "accepted the request and"
        limit = f" ({self._timeout_key})" if self._timeout_key else ""
        message = f"{self.base_url} hangs: it {progress} sent nothing for {self.silence:g} s{limit}"
        if self._hang_log_limit.is_due():
            raise_it = f", or raise {self._timeout_key} if its replies take longer" if self._timeout_key else ""
            logger.warning("{}. Check the server's log{}", message, raise_it)
        return EngineHangs(message)

    def clean(self, text: str) -> str:
        """Return a server's text without the API key, shortened for messages."""
        return (text.replace(self._key, "[redacted]") if self._key else text)[:500]


def _is_retryable(status: int) -> bool:
    """True if a retry of the same request may succeed."""
    return status >= 500 or status in RETRYABLE


def _close_soon(client: httpx.AsyncClient) -> None:
    """Close a client on the running loop, to which it belongs."""
    asyncio.get_running_loop().create_task(client.aclose())
