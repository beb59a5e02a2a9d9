"""AgentDock's HTTP interface (`…/mcpapi`), as a session like any other.

Invariants: an error is known by what the body says, whatever the HTTP status: `status_code` with `detail`, `status:
error`, `content.error`. What the tool said of itself is a `Reply`; that nobody was there to say it is a
`CallFailedError`. AgentDock keeps nothing apart; at a front of ours, which says in the header `x-episodes` that it
does, a session is an episode of its own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ajet_mcp.contract import CallFailedError, Limits, Reply, Tool
from ajet_mcp.servers import Server
from ajet_mcp.thin.episodes import OwnEpisode
from ajet_mcp.thin.server import HttpServer
from ajet_mcp.thin.told import lost_at_front, tool_of

MOST_SERVERS = 1_000
AWAY = (429, 502, 503, 504)
"""Nobody was there to answer: a manager says it of the node behind it."""
NOT_TAKEN = (429, 503)
"""Of those, where the call was not begun."""


class DockSession:
    """One attempt's session with AgentDock."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._http, self._limits = HttpServer.of(server), limits
        self._base, self._seconds = server.url.rstrip("/"), server.timeout or limits.call
        self._servers: list[str] = []
        self._ids: dict[str, str] = {}
        """Names of tools as they are told, and as they are called."""
        self._headers: dict[str, str] = {}
        self._episode: OwnEpisode | None = None
        self._closed = False

    @classmethod
    async def open(cls, server: Server, limits: Limits) -> DockSession:
        """Raises CallFailedError."""
        session = cls(server, limits)
        try:
            await asyncio.wait_for(session._start_servers(), limits.start)
        except asyncio.TimeoutError:
            await session.close()
            said = f"no answer of {server.name} within {limits.start:g} s"
            raise CallFailedError(said, "environment", delivered=False) from None
        except BaseException:
            await session.close()
            raise
        return session

    async def _start_servers(self) -> None:
        told, headers = await self._fetch_list("servers")
        self._servers = list(dict.fromkeys(each for each in told if isinstance(each, str)))
        if len(self._servers) > MOST_SERVERS:
            said = f"names {len(self._servers)} servers, at most {MOST_SERVERS} are asked for their tools"
            raise self._http.failed(said, "environment", delivered=False)
        if path := headers.get("x-episodes", ""):
            at, limits = self._http.own(path), self._limits
            self._episode = await OwnEpisode.begin(self._http, at, seconds=limits.start, limit=limits.reply_bytes)
            self._headers = {"x-episode": self._episode.name}

    @property
    def ended(self) -> bool:
        """See Session."""
        return self._closed

    async def tools(self) -> Sequence[Tool]:
        """Bare names, those of two servers told apart by their server's."""
        of_each = await asyncio.gather(*(self._fetch_list("tools", server) for server in self._servers))
        found = [
            (server, tool)
            for server, (told, _) in zip(self._servers, of_each, strict=True)
            for each in told
            if (tool := _parse_tool(server, each)) is not None
        ]
        times = Counter(tool.name for _, tool in found)
        named = [(tool.name if times[tool.name] == 1 else f"{server}__{tool.name}", server, tool)
                 for server, tool in found]  # fmt: skip
        self._ids = {name: f"{server}.{tool.name}" for name, server, tool in named}
        return [Tool(name, tool.description, tool.schema, tool.repeatable) for name, _, tool in named]

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Reply:
        """Once."""
        address = f"{self._base}/tool/{quote(self._ids.get(name, name), safe='')}"
        status, told, _ = await self._fetch_json("POST", address, self._seconds, arguments)
        if status < 400:
            return Reply(_convert_content(told.get("content")))
        said = _find_message(told) or f"HTTP {status}"
        lost = lost_at_front(said, told)
        if lost is not None:
            raise lost
        if status in AWAY:
            raise self._http.failed(f"has no {name}: {said}", "transport", delivered=status not in NOT_TAKEN)
        return Reply(({"type": "text", "text": said},), failed=True)

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        episode, self._episode = self._episode, None
        if episode is not None:
            await self._http.leave(episode.address, seconds=self._limits.close)

    async def _fetch_list(self, what: str, server: str = "") -> tuple[list[Any], Mapping[str, str]]:
        path = f"server/{quote(server, safe='')}/{what}" if server else what
        status, told, headers = await self._fetch_json("GET", f"{self._base}/{path}", self._limits.start)
        found = told.get(what)
        if status >= 400 or not isinstance(found, list):
            said = _find_message(told) or f"HTTP {status}, and no list of {what}"
            raise self._http.failed(f"is no AgentDock that can be used: {said}", "environment", delivered=False)
        return found, headers

    async def _fetch_json(
        self, method: str, url: str, seconds: float, body: Any = None
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """(the status that counts, what was said, headers). Raises CallFailedError."""
        if self._closed:
            raise CallFailedError("this session is closed", "environment", delivered=False, lost=True)
        status, headers, told = await self._http.exchange(
            method, url, seconds=seconds, limit=self._limits.reply_bytes, body=body, headers=self._headers
        )
        if not isinstance(told, dict):
            delivered = status not in NOT_TAKEN
            raise self._http.failed(f"answered HTTP {status} and no JSON object", "transport", delivered=delivered)
        inside, content = told.get("status_code"), told.get("content")
        if isinstance(inside, int) and inside >= 400:
            status = inside
        elif status < 400 and (told.get("status") == "error" or (isinstance(content, dict) and "error" in content)):
            status = 500
        return status, told, headers


def _parse_tool(server: str, told: Any) -> Tool | None:
    """The tool of AgentDock's line (`function`), or of one that is written as MCP's."""
    if not isinstance(told, dict):
        return None
    inner = told.get("function")
    if isinstance(inner, dict):
        told = {**told, **inner, "inputSchema": inner.get("parameters")}
    name = told.get("name")
    return tool_of({**told, "name": name.removeprefix(f"{server}.")} if isinstance(name, str) else told)


def _find_message(told: Mapping[str, Any]) -> str:
    content = told.get("content")
    said = told.get("detail") or (content.get("error") if isinstance(content, dict) else content)
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False) if said else ""


def _convert_content(content: Any) -> tuple[dict[str, Any], ...]:
    """MCP's, from a bare value, or from parts as requests to models have them."""
    if not isinstance(content, list) or not all(isinstance(each, dict) and "type" in each for each in content):
        return (_build_text_block(content),) if content is not None else ()
    return tuple(_convert_block(each) for each in content)


def _convert_block(part: Mapping[str, Any]) -> dict[str, Any]:
    url = part["image_url"].get("url") if isinstance(part.get("image_url"), dict) else None
    if part["type"] == "image_url" and isinstance(url, str) and url.startswith("data:"):
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        return {"type": "image", "mimeType": kind, "data": data}
    return _build_text_block(part.get("text")) if part["type"] == "text" else dict(part)


def _build_text_block(value: Any) -> dict[str, Any]:
    """AgentDock reads a text that is JSON."""
    return {"type": "text", "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
