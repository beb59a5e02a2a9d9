"""Servers connected by two pipes (MCP's stdio transport).

Invariants: a frame (one line) longer than the limit is discarded while it arrives. Lines that are no JSON-RPC are
skipped and counted, and too many of them end the connection. Each session starts a process. A `shared` server has one
process for all sessions of this ajet process, ended with the last session.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from loguru import logger

from ajet.environment.loop import process_local
from ajet_mcp.contract import CallFailedError, Limits
from ajet_mcp.processes import ServerProcess
from ajet_mcp.servers import Server
from ajet_mcp.thin.answers import Answers
from ajet_mcp.thin.messages import (
    HELLO,
    UNSUPPORTED_VERSION,
    RpcError,
    decoded,
    encoded,
    notification,
    request,
)

GARBAGE = 1_000
"""Limit of lines other than JSON-RPC."""
_ID = re.compile(rb'"id"\s*:\s*"?(\d{1,18})"?\s*[,}]')
_shared: dict[tuple[Any, ...], StdioConnection] = process_local({})


class StdioConnection:
    """One server process, with the requests that wait for its replies."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._server, self._limits = server, limits
        self.users = 0
        """Number of sessions that use the process."""
        self.stateless = False
        """True if the server knows only the stateless revision of MCP."""
        self._process: ServerProcess | None = None
        self.answers = Answers(server.name, self._send_message)
        self._start_task: asyncio.Task[None] | None = None
        self._read_task: asyncio.Task[None] | None = None

    async def start(self, seconds: float) -> None:
        """Start the process once; later callers wait for the first start.

        Raises:
            CallFailedError: the process cannot be started.
            RpcError: the server answered with an error.
        """
        if self._start_task is None:
            self._start_task = asyncio.create_task(self._start_process(seconds))
        await asyncio.shield(self._start_task)

    async def _start_process(self, seconds: float) -> None:
        """Start the server's process and begin the session with `initialize`.

        A server that knows only the stateless revision refuses `initialize`, and needs no session.

        Raises:
            CallFailedError: the process cannot be started.
            RpcError: the server answered with another error.
        """
        self._process = await ServerProcess.start(self._server)
        self._read_task = asyncio.create_task(self._read_replies(self._process))
        try:
            await self.answers.request("initialize", HELLO, seconds)
        except RpcError as error:
            if error.code != UNSUPPORTED_VERSION:
                raise
            self.stateless = True
            return
        await self._send_message(notification("notifications/initialized"))

    async def end(self, seconds: float) -> None:
        """End the process and all processes started by it."""
        if self._start_task is not None and not self._start_task.done():
            self._start_task.cancel()
            await asyncio.wait([self._start_task])
        elif self._start_task is not None and not self._start_task.cancelled():
            self._start_task.exception()  # marks the exception as retrieved; the starter received it
        self.answers.end(CallFailedError("this session is closed", "environment", delivered=False, lost=True))
        if self._process is not None:
            await self._process.end(seconds)
        if self._read_task is not None:
            self._read_task.cancel()

    async def _send_message(self, message: Mapping[str, Any]) -> None:
        """Write a message to the process. Raises CallFailedError if its pipe is closed."""
        assert self._process is not None
        await self._process.write(encoded(message))

    async def _read_replies(self, process: ServerProcess) -> None:
        """Pass the messages of the process to the waiting requests until its output ends.

        Other lines are skipped; more than GARBAGE of them end the connection.
        """
        skipped_lines = 0
        async for line in process.lines(self._limits.reply_bytes):
            if line is None:
                self._too_large(process.head)
            elif (message := decoded(line)) is not None:
                self.answers.take(message)
            elif line.strip():
                skipped_lines += 1
                if match := _ID.search(line[:256]):  # an unreadable reply, nested too deeply for instance
                    reason = f"the MCP server {process.name} sent a reply that is not readable JSON-RPC"
                    self.answers.fail(CallFailedError(reason, "transport"), int(match[1]))
                if skipped_lines == 1:
                    logger.warning("the MCP server {} wrote a line that is not JSON-RPC: {!r}", process.name, line[:80])
                if skipped_lines > GARBAGE:
                    reason = f"the MCP server {process.name} wrote {skipped_lines} lines that are not JSON-RPC"
                    self.answers.end(CallFailedError(reason, "transport", lost=True))
                    return
        self.answers.end(await process.gone())

    def _too_large(self, head: bytes) -> None:
        """Fail the request whose reply was too long.

        Args:
            head: first bytes of the discarded line. Without an id in them, all waiting requests fail.
        """
        match = _ID.search(head)
        problem = CallFailedError(
            f"the MCP server {self._server.name} answered with more than {self._limits.reply_bytes} bytes", "too_large"
        )
        self.answers.fail(problem, int(match[1]) if match else None)


class StdioChannel:
    """The transport of one session over the pipes of a server process."""

    def __init__(self, server: Server, limits: Limits) -> None:
        self._server = server
        if not server.shared:
            self._connection = StdioConnection(server, limits)
        else:
            connection = _shared.get(server.key)
            if connection is None or connection.answers.over is not None:
                connection = _shared[server.key] = StdioConnection(server, limits)
            self._connection = connection
        self._connection.users += 1

    async def start(self, seconds: float) -> None:
        """Start the connection.

        Raises:
            CallFailedError: the process cannot be started.
            RpcError: the server answered with an error.
        """
        await self._connection.start(seconds)

    @property
    def ended(self) -> bool:
        """True if the connection has ended."""
        return self._connection.answers.over is not None

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            CallFailedError: the request failed on its way.
            RpcError: the server answered with an error.
        """
        if self._connection.stateless:
            params = request(0, method, params, stateless=True)["params"]
        return await self._connection.answers.request(method, params, seconds)

    async def close(self, seconds: float) -> None:
        """Close this session. The process ends with its last session."""
        connection = self._connection
        connection.users -= 1
        if connection.users > 0:
            return
        if _shared.get(self._server.key) is connection:
            del _shared[self._server.key]
        await connection.end(seconds)
