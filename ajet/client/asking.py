"""Requests to the server, asked again where that is right.

Invariant: a request that the server refuses for now (429, 503) or may not have heard is sent again, until the patience
is over; nothing else is. All requests bear that: an end that is said twice counts once, and an episode whose opening
was not heard ends by its time limit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import httpx

from ajet.client.refusals import EpisodeLost, Refused, Unreachable

_LOST = {"episode_not_found", "episode_ended", "place_lost"}
_AGAIN = {429, 503}
LONGEST_PAUSE = 5.0


class Asking:
    """Thread-safe."""

    def __init__(self, url: str, admin_key: str, *, patience: float, timeout: float) -> None:
        """`patience`: seconds for which a request is repeated. `timeout`: of one request."""
        self.url, self.patience = url, patience
        headers = {"Authorization": f"Bearer {admin_key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(timeout, connect=10.0))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer. Raises Refused and Unreachable."""
        until, pause = time.monotonic() + self.patience, 0.1
        while True:
            problem: Exception
            try:
                reply = self._http.request(method, path, json=body)
            except httpx.TransportError as error:
                problem = Unreachable(f"{self.url}: {error or type(error).__name__}")
            else:
                if reply.is_success:
                    answer: dict[str, Any] = reply.json()
                    return answer
                problem = _refused(reply)
                if reply.status_code not in _AGAIN:
                    raise problem
                pause = max(pause, _seconds(reply.headers.get("Retry-After", "")))
            pause = min(LONGEST_PAUSE, pause) * random.uniform(0.8, 1.2)
            if time.monotonic() + pause > until:
                raise problem
            time.sleep(pause)
            pause *= 2

    def close(self) -> None:
        """Let connections go."""
        self._http.close()


def _refused(reply: httpx.Response) -> Refused:
    try:
        said = reply.json()["error"]
        code, message, param = said["code"] or "", said["message"], said["param"] or ""
    except (ValueError, KeyError, TypeError):
        code, message, param = "", reply.text[:500], ""
    kind = EpisodeLost if code in _LOST else Refused
    return kind(reply.status_code, code, message, param)


def _seconds(told: str) -> float:
    return float(told) if told.isdecimal() else 0.0
