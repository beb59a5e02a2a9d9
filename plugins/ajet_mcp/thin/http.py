"""HttpChannel: the requests of one session over MCP's streamable HTTP, in both protocol generations.

Invariants: a DELETE ends the session's state on the server. If the server announces episodes (`_meta` of
`server/discover`, sent by `ajet env up`), each session is its own episode.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from ajet_mcp.contract import CallFailedError
from ajet_mcp.thin.episodes import OwnEpisode
from ajet_mcp.thin.messages import (
    HELLO,
    STATELESS,
    UNSUPPORTED_VERSION,
    RpcError,
    header_value,
    is_header_text,
    notification,
    request,
    result_of,
)
from ajet_mcp.thin.server import KEEPALIVE_S, SESSION, HttpServer

EPISODES, SEVERAL = "ajet/episodes", "ajet/several"
"""Keys in the `_meta` of the `server/discover` result.

EPISODES holds the path for creating an episode, SEVERAL is True for several fronts behind the address.
"""


class HttpChannel:
    """The transport of one session over HTTP."""

    def __init__(self, server: HttpServer, limit: int) -> None:
        self._server, self._limit = server, limit
        self._numbers = itertools.count(1)
        self._headers: dict[str, str] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._episode: OwnEpisode | None = None

    async def start(self, seconds: float) -> None:
        """Detect the server's protocol revision once, then begin a session or an episode if it has them.

        Raises:
            CallFailedError: the server cannot be used.
        """
        server = self._server
        if server.stateless is None:
            async with server.asking:
                if server.stateless is None:
                    server.stateless = await self._is_stateless(seconds)
        if server.stateless:
            if server.episodes:
                await self._begin_episode(seconds)
            return
        try:
            result, session = await self._send_request("initialize", HELLO, {}, seconds)
        except (CallFailedError, RpcError):
            server.stateless = None  # ask again next time: another server may answer then
            raise
        version = result.get("protocolVersion")
        self._headers = {"MCP-Protocol-Version": version if is_header_text(version) else HELLO["protocolVersion"]}
        if session:
            self._headers[SESSION] = session
        initialized = notification("notifications/initialized")
        await server.send(initialized, self._headers, seconds=seconds, limit=self._limit)

    @property
    def ended(self) -> bool:
        """Always False: a server at an address may answer again."""
        return False

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result.

        Args:
            seconds: deadline of the reply.
            headers: arguments that a stateless server expects as headers too (`Mcp-Param-*`).

        Raises:
            CallFailedError: the request failed on its way.
            RpcError: the server answered with an error.
        """
        if not self._server.stateless:
            return (await self._send_request(method, params, self._headers, seconds))[0]
        request_headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method, **(headers or {})}
        if "name" in params:
            request_headers["Mcp-Name"] = header_value(params["name"])
        result = (await self._send_request(method, params, request_headers, seconds))[0]
        if result.get("resultType", "complete") != "complete":
            raise RpcError({"message": f"the tool requires {result['resultType']}, which a rollout does not support"})
        return result

    async def close(self, seconds: float) -> None:
        """End the session or episode on the server."""
        for task in self._background_tasks:
            task.cancel()
        episode, headers = self._episode, self._headers
        self._episode, self._headers = None, {}
        if episode is not None or SESSION in headers:
            address = episode.address if episode is not None else self._server.url
            await self._server.leave(address, seconds=seconds, headers=headers)

    async def _begin_episode(self, seconds: float) -> None:
        """Create the episode of this session. After a failure the next session asks for the protocol revision again."""
        server = self._server
        try:
            self._episode = await OwnEpisode.begin(server, server.episodes, seconds=seconds, limit=self._limit)
        except CallFailedError:
            server.stateless = None  # ask again next time: another server may answer then
            raise

    async def _send_request(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str], seconds: float
    ) -> tuple[dict[str, Any], str]:
        """Send a request to the episode or the server, and return (result, session id or "").

        A request that timed out or was cancelled is reported to a server with sessions.

        Raises:
            CallFailedError: the request failed on its way.
            RpcError: the server answered with an error.
        """
        request_id = next(self._numbers)
        message = request(request_id, method, params, stateless="Mcp-Method" in headers)
        url = self._episode.url if self._episode is not None else ""
        try:
            reply, session = await self._server.send(message, headers, seconds=seconds, limit=self._limit, url=url)
        except (CallFailedError, asyncio.CancelledError) as problem:
            if SESSION in headers and getattr(problem, "kind", "timeout") == "timeout":
                self._give_up(request_id)
            raise
        assert reply is not None
        return result_of(reply), session

    def _give_up(self, request_id: int) -> None:
        """Send a cancellation of request `request_id` to a server with sessions.

        A stateless server notices the closed connection instead.
        """
        message = notification("notifications/cancelled", {"requestId": request_id, "reason": "no one waits for it"})
        task = asyncio.create_task(self._send_notification(message))
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _send_notification(self, message: Mapping[str, Any]) -> None:
        """Send a notification, and ignore its failure."""
        with suppress(CallFailedError):  # the result of the notification does not matter
            await self._server.send(message, self._headers, seconds=KEEPALIVE_S, limit=self._limit)

    async def _is_stateless(self, seconds: float) -> bool:
        """Request `server/discover` and return True if the server follows the stateless revision of MCP.

        Older servers refuse the request. The reply also says whether the server has episodes.

        Raises:
            CallFailedError: the server is not reachable, or supports no common revision.
        """
        headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "server/discover"}
        try:
            result, _ = await self._send_request("server/discover", {}, headers, seconds)
        except RpcError as error:
            offered = error.data.get("supported") if isinstance(error.data, dict) else None
            if (
                error.code == UNSUPPORTED_VERSION
                and isinstance(offered, list)
                and HELLO["protocolVersion"] not in offered
            ):
                raise CallFailedError(
                    f"the MCP server {self._server.name} supports only the protocol version {offered}",
                    "environment",
                    lost=True,
                ) from None
            return False
        except CallFailedError as problem:
            if problem.kind == "transport" and isinstance(problem.__cause__, (aiohttp.ClientError, OSError)):
                raise
            if problem.lost or problem.kind == "timeout":
                raise
            return False  # an HTTP error without JSON-RPC: a server older than the revision
        meta = result.get("_meta")
        path = meta.get(EPISODES) if isinstance(meta, dict) else None
        self._server.episodes = self._server.own(path) if isinstance(path, str) and path else ""
        self._server.spread = isinstance(meta, dict) and meta.get(SEVERAL) is True
        offered = result.get("supportedVersions")
        return isinstance(offered, list) and STATELESS in offered
