"""Episodes at an environment of `ajet env up`, one per session, with separate server state.

The front is the environment's HTTP server. Invariants: the episode is created once, before the first call. All
addresses of the episode are on the front that created it. If several fronts (pods behind one Service) share an address,
the episode's own address has the same scheme and port.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from urllib.parse import urljoin, urlsplit

from ajet_mcp.thin.server import HttpServer

FULL = 503
SHORTEST_PAUSE_S = 0.1
_ALONE = {"Connection": "close"}
"""Closes the connection, since a load balancer chooses a front per connection."""


@dataclass(frozen=True, slots=True)
class OwnEpisode:
    """One open episode at an environment, with the URLs of its calls and of its end."""

    name: str
    address: str
    """Address for the DELETE request at the end."""
    url: str
    """MCP address of the episode."""

    @classmethod
    async def begin(cls, server: HttpServer, at: str, *, seconds: float, limit: int) -> OwnEpisode:
        """Create an episode at the environment.

        A full environment (HTTP 503) is retried after its `Retry-After` until `seconds` have passed.

        Args:
            server: the environment's connections.
            at: URL that creates episodes.
            seconds: deadline.
            limit: largest reply in bytes.

        Raises:
            CallFailedError: the environment creates no episode.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            status, headers, body = await server.exchange(
                "POST", at, seconds=seconds, limit=limit, body={}, headers=_ALONE if server.spread else None
            )
            pause = _parse_retry_after(headers.get("Retry-After", ""))
            if status != FULL or asyncio.get_running_loop().time() + pause >= deadline:
                break
            await asyncio.sleep(pause)
        body = body if isinstance(body, dict) else {}
        name, path = body.get("episode"), body.get("path")
        if status != 201 or not isinstance(name, str) or not isinstance(path, str):
            reason = f"did not create an episode (HTTP {status}): {body.get('error', '')}"
            raise server.failed(reason, "environment", delivered=False)
        url = body.get("url")
        if not isinstance(url, str):
            return cls(name, f"{at}/{name}", server.own(path))
        url = server.resolve_sibling(url)
        return cls(name, urljoin(url, f"{urlsplit(at).path}/{name}"), url)


def _parse_retry_after(value: str) -> float:
    """Return the seconds of a `Retry-After` header, given as a number or a date.

    Any other value counts as 1 second.
    """
    if value.isascii() and value.isdigit():
        return max(float(value), SHORTEST_PAUSE_S)
    date = parsedate_tz(value)
    if date is None:
        return 1.0
    try:
        return max(mktime_tz(date) - time.time(), SHORTEST_PAUSE_S)
    except (ValueError, OverflowError):  # a month 13, a year out of range
        return 1.0
