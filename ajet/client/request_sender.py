"""Sends requests to the server, with retries.

Invariant: a request refused temporarily (429, 503) or possibly lost is repeated until the patience is over; other
errors are final. All requests tolerate repeats: a repeated end counts once, and an episode with a lost opening ends by
its time limit.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from ajet.client.proxies import LOOPBACK, explain_problem, name_proxy
from ajet.client.refusals import EpisodeLost, Refused, Unreachable

_LOST = {"episode_not_found", "episode_ended", "place_lost"}
_RETRYABLE = {429, 503}
LONGEST_PAUSE = 5.0
_DIRECT: dict[str, Any] = {f"all://[{host}]" if ":" in host else f"all://{host}": None for host in LOOPBACK}
"""Bypass environment proxies for requests to the local machine."""
_log = logging.getLogger("ajet.client")


class RequestSender:
    """Sends requests to one server and repeats them while it is busy or does not respond. Thread-safe."""

    def __init__(self, url: str, admin_key: str, *, patience: float, timeout: float) -> None:
        """Open an HTTP client.

        Args:
            url: Address of the server.
            admin_key: Key of the server.
            patience: Seconds of retries.
            timeout: Seconds per request.

        Raises:
            Unreachable: a proxy variable of the environment is unusable.
        """
        self.url, self.patience = url, patience
        headers, limit = {"Authorization": f"Bearer {admin_key}"}, httpx.Timeout(timeout, connect=10.0)
        try:
            self._http_client = httpx.Client(base_url=url, headers=headers, timeout=limit, mounts=_DIRECT)
        except (ImportError, ValueError) as error:
            if explained := explain_problem(error):
                raise Unreachable(explained) from error
            raise

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the JSON object of the answer.

        Raises:
            Refused: the server refused the request, or is still busy after `patience` seconds.
            Unreachable: the server did not respond for `patience` seconds.
        """
        deadline, pause, is_first_failure = time.monotonic() + self.patience, 0.1, True
        while True:
            problem: Exception
            try:
                reply = self._http_client.request(method, path, json=body)
            except httpx.TransportError as error:
                problem = Unreachable(f"{self.url}: {error or type(error).__name__}{self._name_way()}")
            else:
                if reply.is_success:
                    answer: dict[str, Any] = reply.json()
                    return answer
                problem = _refusal_error(reply)
                if reply.status_code not in _RETRYABLE:
                    raise problem
                retry_after = reply.headers.get("Retry-After", "")
                pause = max(pause, float(retry_after) if retry_after.isdecimal() else 0.0)
            pause = min(LONGEST_PAUSE, pause) * random.uniform(0.8, 1.2)
            if time.monotonic() + pause > deadline:
                raise problem
            if is_first_failure and isinstance(problem, Unreachable):
                is_first_failure = False
                _log.warning("%s; retrying for %g s", problem, self.patience)
            time.sleep(pause)
            pause *= 2

    def _name_way(self) -> str:
        """Return the proxy of the requests with advice, to append to an error; "" without a proxy."""
        proxy = name_proxy(self.url)
        host = urlsplit(self.url).hostname
        return (
            f" (through the proxy {proxy}; if the proxy cannot reach the server, set NO_PROXY={host})" if proxy else ""
        )

    def close(self) -> None:
        """Close the connections to the server."""
        self._http_client.close()


def _refusal_error(reply: httpx.Response) -> Refused:
    """Return the error for a refusal in OpenAI's format, or for another body with its first 500 characters."""
    try:
        error = reply.json()["error"]
        code, message, param = error["code"] or "", error["message"], error["param"] or ""
    except (ValueError, KeyError, TypeError):
        code, message, param = "", reply.text[:500], ""
    error_class = EpisodeLost if code in _LOST else Refused
    return error_class(reply.status_code, code, message, param)
