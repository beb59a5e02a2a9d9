"""DockSession: a session over AgentDock's HTTP interface (`…/mcpapi`).

Invariants: errors are read from the body, for any HTTP status: `status_code` with `detail`, `status: error`,
`content.error`. The tool's own error is a `Reply`. A missing server behind AgentDock is a `CallFailedError`. AgentDock
does not separate sessions. ajet's own environment server (`ajet env up`) has the same interface and announces episodes
by the header `x-episodes`: then each session is its own episode.
"""

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
from ajet_mcp.thin.parsing import lost_at_front, tool_of
from ajet_mcp.thin.server import HttpServer

MOST_SERVERS = 1_000
AWAY = (429, 502, 503, 504)
"""HTTP statuses of a manager without a reachable node."""
NOT_TAKEN = (429, 503)
"""Statuses of `AWAY` for a call that did not start."""


class DockSession:
    """Session of one attempt with the tool servers behind AgentDock's HTTP interface."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._http_server, self._limits = HttpServer.of(server), limits
        self._base, self._seconds = server.url.rstrip("/"), server.timeout or limits.call
        self._servers: list[str] = []
        self._ids: dict[str, str] = {}
        """Maps the tool names shown to the model to AgentDock's tool ids."""
        self._headers: dict[str, str] = {}
        self._episode: OwnEpisode | None = None
        self._closed = False

    @classmethod
    async def open(cls, server: Server, limits: Limits) -> DockSession:
        """Open a session and list the tools.

        Raises:
            CallFailedError: no answer, or the answer is not AgentDock's.
        """
        session = cls(server, limits)
        try:
            await asyncio.wait_for(session._start_servers(), limits.start)
        except TimeoutError:
            await session.close()
            reason = f"{server.name} did not answer within {limits.start:g} s"
            raise CallFailedError(reason, "environment", delivered=False) from None
        except BaseException:
            await session.close()
            raise
        return session

    async def _start_servers(self) -> None:
        """Request the names of the servers, and create an episode if the manager announces episodes.

        Raises:
            CallFailedError: the manager is not usable.
        """
        names, headers = await self._fetch_list("servers")
        self._servers = list(dict.fromkeys(name for name in names if isinstance(name, str)))
        if len(self._servers) > MOST_SERVERS:
            reason = f"names {len(self._servers)} servers, the limit is {MOST_SERVERS}"
            raise self._http_server.failed(reason, "environment", delivered=False)
        if path := headers.get("x-episodes", ""):
            address, limits = self._http_server.own(path), self._limits
            self._episode = await OwnEpisode.begin(
                self._http_server, address, seconds=limits.start, limit=limits.reply_bytes
            )
            self._headers = {"x-episode": self._episode.name}

    @property
    def ended(self) -> bool:
        """True if the session is closed."""
        return self._closed

    async def tools(self) -> Sequence[Tool]:
        """Return the tools; a name used by two servers gets the server's name as prefix."""
        lists = await asyncio.gather(*(self._fetch_list("tools", server) for server in self._servers))
        server_tools = [
            (server, tool)
            for server, (entries, _) in zip(self._servers, lists, strict=True)
            for entry in entries
            if (tool := _parse_tool(server, entry)) is not None
        ]
        name_counts = Counter(tool.name for _, tool in server_tools)
        named_tools = [(tool.name if name_counts[tool.name] == 1 else f"{server}__{tool.name}", server, tool)
                 for server, tool in server_tools]  # fmt: skip
        self._ids = {name: f"{server}.{tool.name}" for name, server, tool in named_tools}
        return [Tool(name, tool.description, tool.schema, tool.repeatable) for name, _, tool in named_tools]

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Reply:
        """Call a tool once, without retries."""
        address = f"{self._base}/tool/{quote(self._ids.get(name, name), safe='')}"
        status, body, _ = await self._send_request("POST", address, self._seconds, arguments)
        if status < 400:
            return Reply(_convert_content(body.get("content")))
        message = _find_message(body) or f"HTTP {status}"
        loss = lost_at_front(message, body)
        if loss is not None:
            raise loss
        if status in AWAY:
            raise self._http_server.failed(f"has no {name}: {message}", "transport", delivered=status not in NOT_TAKEN)
        return Reply(({"type": "text", "text": message},), failed=True)

    async def close(self) -> None:
        """Close the session and its episode. Idempotent."""
        self._closed = True
        episode, self._episode = self._episode, None
        if episode is not None:
            await self._http_server.leave(episode.address, seconds=self._limits.close)

    async def _fetch_list(self, list_name: str, server: str = "") -> tuple[list[Any], Mapping[str, str]]:
        """Return the list `list_name` ("servers" or "tools") and the reply's headers.

        Args:
            server: restricts the list to this server; "" for all.

        Raises:
            CallFailedError: the reply is not AgentDock's.
        """
        path = f"server/{quote(server, safe='')}/{list_name}" if server else list_name
        status, body, headers = await self._send_request("GET", f"{self._base}/{path}", self._limits.start)
        entries = body.get(list_name)
        if status >= 400 or not isinstance(entries, list):
            message = _find_message(body) or f"HTTP {status}, and no list of {list_name}"
            raise self._http_server.failed(
                f"is not a usable AgentDock server: {message}", "environment", delivered=False
            )
        return entries, headers

    async def _send_request(
        self, method: str, url: str, seconds: float, body: Any = None
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """Send a request and return (HTTP status or the body's `status_code`, body, headers).

        Raises:
            CallFailedError: the session is closed, or the answer is no JSON object.
        """
        if self._closed:
            raise CallFailedError("this session is closed", "environment", delivered=False, lost=True)
        status, headers, reply = await self._http_server.exchange(
            method, url, seconds=seconds, limit=self._limits.reply_bytes, body=body, headers=self._headers
        )
        if not isinstance(reply, dict):
            delivered = status not in NOT_TAKEN
            raise self._http_server.failed(
                f"answered with HTTP status {status} and no JSON object", "transport", delivered=delivered
            )
        body_status, content = reply.get("status_code"), reply.get("content")
        if isinstance(body_status, int) and body_status >= 400:
            status = body_status
        elif status < 400 and (reply.get("status") == "error" or (isinstance(content, dict) and "error" in content)):
            status = 500
        return status, reply, headers


def _parse_tool(server: str, entry: Any) -> Tool | None:
    """Parse a tool in AgentDock's form (`function`) or in MCP's form."""
    if not isinstance(entry, dict):
        return None
    function = entry.get("function")
    if isinstance(function, dict):
        entry = {**entry, **function, "inputSchema": function.get("parameters")}
    name = entry.get("name")
    return tool_of({**entry, "name": name.removeprefix(f"{server}.")} if isinstance(name, str) else entry)


def _find_message(body: Mapping[str, Any]) -> str:
    """Return the error message of a reply's body, from `detail` or `content`, or ""."""
    content = body.get("content")
    message = body.get("detail") or (content.get("error") if isinstance(content, dict) else content)
    return message if isinstance(message, str) else json.dumps(message, ensure_ascii=False) if message else ""


def _convert_content(content: Any) -> tuple[dict[str, Any], ...]:
    """Convert AgentDock's result (a plain value or OpenAI content parts) to MCP content blocks."""
    if not isinstance(content, list) or not all(isinstance(part, dict) and "type" in part for part in content):
        return (_build_text_block(content),) if content is not None else ()
    return tuple(_convert_block(part) for part in content)


def _convert_block(part: Mapping[str, Any]) -> dict[str, Any]:
    """Convert one content part of OpenAI's API to an MCP content block."""
    url = part["image_url"].get("url") if isinstance(part.get("image_url"), dict) else None
    if part["type"] == "image_url" and isinstance(url, str) and url.startswith("data:"):
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        return {"type": "image", "mimeType": kind, "data": data}
    return _build_text_block(part.get("text")) if part["type"] == "text" else dict(part)


def _build_text_block(value: Any) -> dict[str, Any]:
    """Return a text block; values other than strings become JSON, since AgentDock parses JSON texts."""
    return {"type": "text", "text": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
