"""Instances of an environment's servers, over ajet's MCP client.

Invariant: a failure of the client is a BoundaryError, and the instance counts as dead afterwards. A shared instance
dies only if the connection is lost or silent, since other episodes use it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ajet_environments.deployment.description import EnvironmentPart
from ajet_environments.deployment.workdirs import Workdirs
from ajet_mcp.confined import behind_walls
from ajet_mcp.contract import CallFailedError, Limits, Session, Tool
from ajet_mcp.thin import ThinClient

PER_CALL_FAILURES = ("timeout", "too_large")
"""Failures of a single call, with no meaning for other calls."""
MAX_SILENT_CALLS = 3
"""Unanswered calls in a row before a shared server counts as dead."""


class McpInstance:
    """A running instance of a tool server over one MCP session, used by one episode or shared by all."""

    def __init__(self, session: Session, tools: Sequence[Tool], *, shared: bool = False) -> None:
        self._session = session
        self._is_shared = shared
        self._silent_calls = 0
        self._is_dead = False
        self.tools: Sequence[Mapping[str, Any]] = [_build_listing(tool) for tool in tools]
        """The tools as listed by MCP, with the server's own names."""

    @property
    def is_alive(self) -> bool:
        """False once the instance cannot answer any more."""
        return not self._is_dead and not self._session.ended

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a tool and return the result of MCP's `tools/call`.

        Raises:
            BoundaryError: the call failed outside the tool. The instance is then unusable, unless it is shared and
                still `is_alive`.
        """
        try:
            reply = await self._session.call(name, arguments)
        except CallFailedError as problem:
            self._silent_calls = self._silent_calls + 1 if problem.kind == "timeout" else 0
            # One slow or oversized call must not end a server that other episodes use.
            of_this_call = self._is_shared and not problem.lost and problem.kind in PER_CALL_FAILURES
            self._is_dead = self._is_dead or not of_this_call or self._silent_calls >= MAX_SILENT_CALLS
            raise
        self._silent_calls = 0
        result: dict[str, Any] = {"content": list(reply.content), "isError": reply.failed}
        return result if reply.structured is None else {**result, "structuredContent": reply.structured}

    async def close(self) -> None:
        """End the server and all its child processes."""
        self._is_dead = True
        await self._session.close()


def make_starter(part: EnvironmentPart, workdirs: Workdirs) -> Callable[[str], Awaitable[McpInstance]]:
    """Return a coroutine function that starts this server for an episode id and lists its tools.

    The episode id "" starts a spare instance before an episode exists.
    """
    client = ThinClient()

    async def start(episode: str) -> McpInstance:
        """Start the server for an episode and return its instance. Raises BoundaryError."""
        server = part.server if part.start is None else part.start(*workdirs.prepare_folder(episode))
        assert server is not None, "a server that is off is not started"
        if server.confined:
            server = behind_walls(server, *workdirs.prepare_folder(episode))
        session = await client.open(server, Limits(call=part.seconds))
        try:
            return McpInstance(session, await session.tools(), shared=part.per == "shared")
        except BaseException:  # also a cancellation: the started process must not remain
            await session.close()
            raise

    return start


def _build_listing(tool: Tool) -> dict[str, Any]:
    """Return a tool in the form of MCP's `tools/list`."""
    listing: dict[str, Any] = {"name": tool.name, "description": tool.description, "inputSchema": dict(tool.schema)}
    if tool.repeatable:
        listing["annotations"] = {"idempotentHint": True}
    return listing
