"""An episode of a session's own at a front (`ajet env up`): what keeps state there is then nobody else's.

Invariant: it is made once, before anything is called, and all of its addresses are on the front itself; of several
behind one address, on the one that made it, which says so: same scheme, same port.
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
"""Whoever chooses among several does so for each connection."""


@dataclass(frozen=True, slots=True)
class OwnEpisode:
    """An episode of a server that gives them addresses of their own."""

    name: str
    address: str
    """To end it."""
    url: str
    """To speak MCP to it."""

    @classmethod
    async def begin(cls, server: HttpServer, at: str, *, seconds: float, limit: int) -> OwnEpisode:
        """`at`: the address that gives them. A front that is full is asked again, as it says, while there is time.
        Raises CallFailedError."""
        until = asyncio.get_running_loop().time() + seconds
        while True:
            status, headers, body = await server.exchange(
                "POST", at, seconds=seconds, limit=limit, body={}, headers=_ALONE if server.spread else None
            )
            pause = _parse_retry_after(headers.get("Retry-After", ""))
            if status != FULL or asyncio.get_running_loop().time() + pause >= until:
                break
            await asyncio.sleep(pause)
        body = body if isinstance(body, dict) else {}
        name, path = body.get("episode"), body.get("path")
        if status != 201 or not isinstance(name, str) or not isinstance(path, str):
            reason = f"gives no episode (HTTP {status}): {body.get('error', '')}"
            raise server.failed(reason, "environment", delivered=False)
        url = body.get("url")
        if not isinstance(url, str):
            return cls(name, f"{at}/{name}", server.own(path))
        url = server.resolve_sibling(url)
        return cls(name, urljoin(url, f"{urlsplit(at).path}/{name}"), url)


def _parse_retry_after(value: str) -> float:
    """Return the seconds that a `Retry-After` asks for, in seconds or as a date; a second for what is neither."""
    if value.isascii() and value.isdigit():
        return max(float(value), SHORTEST_PAUSE_S)
    date = parsedate_tz(value)
    if date is None:
        return 1.0
    try:
        return max(mktime_tz(date) - time.time(), SHORTEST_PAUSE_S)
    except (ValueError, OverflowError):  # a month 13, a year that no clock knows
        return 1.0
