"""HttpChannel: one session's requests over streamable HTTP, of both eras.

Invariants: what a server keeps of a session ends with a DELETE. At a front that says that it has episodes (`_meta` of
`server/discover`), each session is an episode of its own.
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
from ajet_mcp.thin.server import KEPT_S, SESSION, HttpServer

EPISODES, SEVERAL = "ajet/episodes", "ajet/several"
"""In the `_meta` of what `server/discover` answers: the path below which a client makes an episode of its own; whether
several fronts are behind this address."""


class HttpChannel:
    """One session's requests."""

    def __init__(self, server: HttpServer, limit: int) -> None:
        self._server, self._limit = server, limit
        self._numbers = itertools.count(1)
        self._headers: dict[str, str] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._episode: OwnEpisode | None = None

    async def start(self, seconds: float) -> None:
        """Learn which era the server is of, once; begin a session or an episode where it has them. Raises
        CallFailedError."""
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
            answer, session = await self._send_request("initialize", HELLO, {}, seconds)
        except (CallFailedError, RpcError):
            server.stateless = None  # another server may stand there when it is asked next
            raise
        version = answer.get("protocolVersion")
        self._headers = {"MCP-Protocol-Version": version if is_header_text(version) else HELLO["protocolVersion"]}
        if session:
            self._headers[SESSION] = session
        hello = notification("notifications/initialized")
        await server.send(hello, self._headers, seconds=seconds, limit=self._limit)

    @property
    def ended(self) -> bool:
        """See Channel: a server at an address may always answer again."""
        return False

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Its result. `headers`: arguments that a stateless server wants there, too. Raises CallFailedError,
        RpcError."""
        if not self._server.stateless:
            return (await self._send_request(method, params, self._headers, seconds))[0]
        own = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method, **(headers or {})}
        if "name" in params:
            own["Mcp-Name"] = header_value(params["name"])
        result = (await self._send_request(method, params, own, seconds))[0]
        if result.get("resultType", "complete") != "complete":
            raise RpcError({"message": f"the tool wants {result['resultType']}, which a rollout cannot give"})
        return result

    async def close(self, seconds: float) -> None:
        """Tell a server that keeps a session."""
        for task in self._background:
            task.cancel()
        episode, headers = self._episode, self._headers
        self._episode, self._headers = None, {}
        if episode is not None or SESSION in headers:
            there = episode.address if episode is not None else self._server.url
            await self._server.leave(there, seconds=seconds, headers=headers)

    async def _begin_episode(self, seconds: float) -> None:
        server = self._server
        try:
            self._episode = await OwnEpisode.begin(server, server.episodes, seconds=seconds, limit=self._limit)
        except CallFailedError:
            server.stateless = None  # another server may stand there when it is asked next
            raise

    async def _send_request(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str], seconds: float
    ) -> tuple[dict[str, Any], str]:
        number = next(self._numbers)
        message = request(number, method, params, stateless="Mcp-Method" in headers)
        url = self._episode.url if self._episode is not None else ""
        try:
            answer, session = await self._server.send(message, headers, seconds=seconds, limit=self._limit, url=url)
        except (CallFailedError, asyncio.CancelledError) as problem:
            if SESSION in headers and getattr(problem, "kind", "timeout") == "timeout":
                self._give_up(number)
            raise
        assert answer is not None
        return result_of(answer), session

    def _give_up(self, number: int) -> None:
        """Tell a server that keeps a session that nobody waits any more; a stateless one sees it."""
        told = notification("notifications/cancelled", {"requestId": number, "reason": "no one waits for it"})
        task = asyncio.create_task(self._send_notification(told))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _send_notification(self, message: Mapping[str, Any]) -> None:
        with suppress(CallFailedError):  # as said: nobody waits
            await self._server.send(message, self._headers, seconds=KEPT_S, limit=self._limit)

    async def _is_stateless(self, seconds: float) -> bool:
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
                    f"the MCP server {self._server.name} speaks only {offered}", "environment", lost=True
                ) from None
            return False
        except CallFailedError as problem:
            if problem.kind == "transport" and isinstance(problem.__cause__, (aiohttp.ClientError, OSError)):
                raise
            if problem.lost or problem.kind == "timeout":
                raise
            return False  # an HTTP error without JSON-RPC: a server of before that revision
        meta = result.get("_meta")
        path = meta.get(EPISODES) if isinstance(meta, dict) else None
        self._server.episodes = self._server.own(path) if isinstance(path, str) and path else ""
        self._server.spread = isinstance(meta, dict) and meta.get(SEVERAL) is True
        offered = result.get("supportedVersions")
        return isinstance(offered, list) and STATELESS in offered
