"""ThinClient: opens sessions with tool servers, over HTTP, SSE, pipes or AgentDock's interface.

Invariant: a session uses its channel (the transport) through three methods, start, request and close, whatever the MCP
revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ajet_mcp.contract import CallFailedError, Limits, Reply, Session, Tool
from ajet_mcp.servers import Server
from ajet_mcp.thin.dock import DockSession
from ajet_mcp.thin.http import HttpChannel
from ajet_mcp.thin.messages import RpcError, mirrored
from ajet_mcp.thin.parsing import CALL_ID, lost_at_front, reply_of, tool_of
from ajet_mcp.thin.server import HttpServer
from ajet_mcp.thin.sse import SseChannel
from ajet_mcp.thin.stdio import StdioChannel

PAGES = 100
"""Limit of pages in a server's tool list."""


class Channel(Protocol):
    """The transport of one session: sends requests to the server and returns results."""

    @property
    def ended(self) -> bool: ...

    async def start(self, seconds: float) -> None: ...

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]: ...

    async def close(self, seconds: float) -> None: ...


class ThinClient:
    """Opens sessions with tool servers. Its methods run on the tools' event loop."""

    async def open(self, server: Server, limits: Limits) -> Session:
        """Open a session with a server.

        Raises:
            CallFailedError: the session cannot be opened.
        """
        if server.kind == "dock":
            return await DockSession.open(server, limits)
        channel: Channel
        if server.kind == "http":
            channel = HttpChannel(HttpServer.of(server), limits.reply_bytes)
        elif server.kind == "sse":
            channel = SseChannel(HttpServer.of(server), limits.reply_bytes)
        else:
            channel = StdioChannel(server, limits)
        try:
            await asyncio.wait_for(channel.start(limits.start), limits.start)
        except (TimeoutError, RpcError) as problem:
            await channel.close(limits.close)
            reason = str(problem) or f"the server did not answer within {limits.start:g} s"
            raise CallFailedError(
                f"the MCP server {server.name} opened no session: {reason}", "environment"
            ) from problem
        except BaseException:
            await channel.close(limits.close)
            raise
        return ThinSession(server, channel, limits)


class ThinSession:
    """Session of one attempt with an MCP server."""

    __slots__ = ("_channel", "_closed", "_limits", "_name", "_schemas", "_seconds")

    def __init__(self, server: Server, channel: Channel, limits: Limits) -> None:
        self._name = f"the MCP server {server.name}"
        self._channel = channel
        self._limits = limits
        self._seconds = server.timeout or limits.call
        self._schemas: dict[str, Mapping[str, Any]] = {}
        self._closed = False

    @property
    def ended(self) -> bool:
        """True if the session was closed, or its transport has ended."""
        return self._closed or self._channel.ended

    async def tools(self) -> Sequence[Tool]:
        """Return all tools of the server, from all pages, within the start deadline.

        Raises:
            CallFailedError: the server does not list its tools, or has too many pages.
        """
        tools: list[Tool] = []
        cursor: str | None = None
        now = asyncio.get_running_loop().time
        deadline = now() + self._limits.start
        for _ in range(PAGES):
            if (remaining := deadline - now()) <= 0:
                raise CallFailedError(
                    f"{self._name} did not list its tools within {self._limits.start:g} s", "environment"
                )
            try:
                page = await self._send_request(
                    "tools/list", {"cursor": cursor} if cursor is not None else {}, remaining
                )
            except RpcError as error:
                raise CallFailedError(f"{self._name} does not list its tools: {error}", "environment") from error
            page_tools = page.get("tools")
            if page_tools is not None and not isinstance(page_tools, list):
                reason = (
                    f"{self._name} does not list its tools: `tools` is a {type(page_tools).__name__}, expected a list"
                )
                raise CallFailedError(reason, "environment")
            tools += [tool for entry in page_tools or () if (tool := tool_of(entry)) is not None]
            cursor = page.get("nextCursor")
            if not cursor or not isinstance(cursor, str):  # some servers send "" on the last page
                # Only these schemas name arguments that a call repeats in its headers.
                self._schemas = {tool.name: tool.schema for tool in tools if "x-mcp-header" in str(tool.schema)}
                return tools
        raise CallFailedError(f"the list of tools of {self._name} has more than {PAGES} pages", "environment")

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Reply:
        """Call a tool once, without retries.

        An error of the server is a `Reply` with `failed`, unless it says that an environment was lost.

        Raises:
            CallFailedError: the call failed outside the tool.
        """
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments)}
        if call_id:
            params["_meta"] = {CALL_ID: call_id}
        headers = mirrored(self._schemas[name], arguments) if name in self._schemas else None
        try:
            result = await self._send_request("tools/call", params, self._seconds, headers)
        except RpcError as error:
            loss = lost_at_front(str(error), error.data)
            if loss is not None:
                raise loss from error
            return Reply(({"type": "text", "text": str(error)},), failed=True)
        return reply_of(result)

    async def close(self) -> None:
        """Close the session and its channel. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._channel.close(self._limits.close)

    async def _send_request(
        self, method: str, params: Mapping[str, Any], seconds: float, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request over the channel. Raises CallFailedError if the session is closed."""
        if self._closed:
            raise CallFailedError("this session is closed", "environment", delivered=False, lost=True)
        return await self._channel.request(method, params, seconds, headers)
