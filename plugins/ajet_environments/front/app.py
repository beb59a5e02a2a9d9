"""The front over HTTP: who is let in, and which path is what.

    POST   /episodes            {"servers": [...]?} -> {"episode", "path"}: an episode of one's own; with the "url" that
                                leads here, where several are behind one address, and "lacks", names of the header
                                MCP_SERVERS that are no servers here
    DELETE /episodes/NAME       it is over; {"lost"} says why, where it had lost a server
    POST   /e/NAME/mcp          MCP of both eras, for that episode
    *      /mcp                 MCP for clients that know nothing: by session (handshake era), or shared servers only
    *      /mcpapi/...          AgentDock's
    GET    /health /metrics

Invariant: a request passes, in this order, Host, Origin, token, size; what is refused is told in the words of the
protocol that was spoken. The header MCP_SERVERS is written once for many environments: of its names those that this one
has count, and what it lacks is said; a header of which it has none is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ajet.schema.addresses import parse_netloc
from ajet.schema.errors import BoundaryError
from ajet_environments.front import speech
from ajet_environments.front.dock import dock_routes
from ajet_environments.front.episodes import Episode, Episodes, Full, NoSuchTool
from ajet_environments.front.http import BODY_LIMIT, EscapingJsonResponse, TooLong, json_body, refused
from ajet_environments.front.speech import Wrong

REAP_EVERY = 5.0
SESSION = "mcp-session-id"
EPISODES = "/episodes"


@dataclass(frozen=True, slots=True)
class Access:
    """Who is let in. `token` "" lets in everybody (loopback only, by explicit choice); `hosts` None: any name."""

    token: str = ""
    hosts: frozenset[str] | None = None

    def refusal(self, request: Request) -> Response | None:
        """Why not, or None."""
        host = request.headers.get("host", "")
        if self.hosts is not None and host.lower() not in self.hosts:
            return refused(421, f"this address is not {host!r}")
        origin = request.headers.get("origin")
        if origin is not None and parse_netloc(origin) != host:
            return refused(403, "a page of another origin may not call tools")
        if self.token:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return refused(401, "the token is missing or wrong", {"www-authenticate": "Bearer"})
        return None


class Front:
    """The app's state and routes. On one event loop."""

    def __init__(
        self, name: str, episodes: Episodes, access: Access, aliases: Mapping[str, str], address: str = ""
    ) -> None:
        """`address`: leads to this very front, where clients know that of several."""
        self.name, self.episodes, self.access, self.address = name, episodes, access, address
        self.aliases = aliases
        """Other names of servers, as a header may have them."""
        self._reaping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after episodes that were left. On the loop that serves."""
        self._reaping = asyncio.get_running_loop().create_task(self._reap())

    async def close(self) -> None:
        """Drain and end all."""
        if self._reaping is not None:
            self._reaping.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaping
        await self.episodes.close()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(REAP_EVERY, self.episodes.idle))
            await self.episodes.reap()

    def servers_of(self, request: Request) -> list[str] | None:
        """The servers that the header MCP_SERVERS selects; None: all."""
        names = self._named(request)
        return None if names is None else [name for name in names if name in self.episodes.servers] or names

    def lacking(self, request: Request) -> list[str]:
        """Names in that header that are no servers here."""
        return [name for name in self._named(request) or () if name not in self.episodes.servers]

    def _named(self, request: Request) -> list[str] | None:
        told = request.headers.get("mcp_servers") or request.headers.get("mcp-servers")
        if told is None:
            return None
        names = [name.strip() for name in told.split(",") if name.strip()]
        return list(dict.fromkeys(self.aliases.get(name, name) for name in names))

    async def answered(self, request: Request, episode: Episode | None, message: Any) -> Response:
        """The answer to one MCP message. `episode` None: a client without one, of which only the handshake era gets
        one."""
        id = message.get("id") if isinstance(message, dict) else None
        modern = request.headers.get("mcp-protocol-version") == speech.MODERN
        headers: dict[str, str] = {}
        try:
            asked = speech.understood(message, request.headers)
            modern = asked.modern
            if asked.id is None:
                return Response(status_code=202)
            if asked.method == "initialize":
                if episode is None:
                    episode = self._created(self.servers_of(request))
                    headers[SESSION] = episode.name
                result: Mapping[str, Any] = speech.handshake(asked.params, self.name)
            else:
                result = await self._result(asked, episode, self._servers(request))
        except Wrong as wrong:
            status, told = speech.refusal(wrong, id, modern)
            return EscapingJsonResponse(told, status, headers=headers)
        return EscapingJsonResponse(speech.answer(asked, result, self.name), headers=headers)

    def _created(self, servers: Sequence[str] | None) -> Episode:
        try:
            return self.episodes.create(servers)
        except Full as full:
            raise Wrong(speech.ENVIRONMENT, str(full), {"boundary": "environment", "retryable": True}) from full
        except NoSuchTool as unknown:
            raise Wrong(speech.PARAMS, str(unknown)) from unknown

    def _servers(self, request: Request) -> Sequence[str] | None:
        try:
            return self.episodes.chosen(self.servers_of(request))
        except NoSuchTool as unknown:
            raise Wrong(speech.PARAMS, str(unknown)) from unknown

    async def _result(
        self, asked: speech.Request, episode: Episode | None, servers: Sequence[str] | None
    ) -> Mapping[str, Any]:
        if asked.method == "ping":
            return {}
        if asked.method == "server/discover":
            return speech.discovered(self.name, "" if episode is not None else EPISODES, several=bool(self.address))
        episode = episode or Episode("", stateless=True)
        if asked.method == "tools/list":
            return {"tools": self.episodes.tools(episode, servers)}
        if asked.method != "tools/call":
            raise Wrong(speech.NO_METHOD, f"Method not found: {asked.method}")
        name, arguments = asked.params.get("name"), asked.params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise Wrong(speech.PARAMS, "`name` is a string and `arguments` an object")
        try:
            return await self.episodes.call(episode, name, arguments, servers)
        except NoSuchTool as unknown:
            raise Wrong(speech.PARAMS, str(unknown)) from unknown
        except BoundaryError as problem:
            data = {"boundary": problem.boundary, "retryable": problem.retryable}
            raise Wrong(speech.ENVIRONMENT, f"environment lost: {problem}", data) from problem


def build_front(front: Front) -> Starlette:
    """The front's application."""

    async def mcp(request: Request) -> Response:
        return await _mcp(front, request, None)

    async def mcp_of_episode(request: Request) -> Response:
        episode = front.episodes.find(request.path_params["episode"])
        if episode is None:
            return refused(404, "no such episode: it has ended, or its environment was started again")
        return await _mcp(front, request, episode)

    async def create(request: Request) -> Response:
        told = await json_body(request)
        servers = told.get("servers") if isinstance(told, dict) else None
        if servers is not None and not (isinstance(servers, list) and all(isinstance(name, str) for name in servers)):
            return refused(400, "`servers` is a list of names")
        try:
            episode = front.episodes.create(servers)
        except Full as full:
            return refused(503, str(full), {"retry-after": "1"})
        except NoSuchTool as unknown:
            return refused(400, str(unknown))
        path = f"/e/{episode.name}/mcp"
        own: dict[str, Any] = {"url": front.address + path} if front.address else {}
        if lacks := front.lacking(request):
            own["lacks"] = lacks
        return EscapingJsonResponse({"episode": episode.name, "path": path, **own}, 201)

    async def end(request: Request) -> Response:
        episode = front.episodes.find(request.path_params["episode"])
        if episode is None or not await front.episodes.end(episode.name):
            return refused(404, "no such episode")
        return EscapingJsonResponse({"lost": episode.lost}) if episode.lost else Response(status_code=204)

    async def health(request: Request) -> Response:
        servers = {name: _state(server) for name, server in front.episodes.servers.items()}
        status = "draining" if front.episodes.draining else "success"
        return EscapingJsonResponse(
            {"status": status, "name": front.name, "episodes": len(front.episodes), "servers": servers}
        )

    async def metrics(request: Request) -> Response:
        lines = [f"ajet_env_open_episodes {len(front.episodes)}"]
        lines += [f"ajet_env_{name}_total {count}" for name, count in sorted(front.episodes.counts.items())]
        return PlainTextResponse("\n".join(lines) + "\n")

    every = ["GET", "POST", "DELETE"]
    routes = [
        Route("/mcp", mcp, methods=every),
        Route("/e/{episode}/mcp", mcp_of_episode, methods=every),
        Route(EPISODES, create, methods=["POST"]),
        Route(f"{EPISODES}/{{episode}}", end, methods=["DELETE"]),
        Route("/health", health),
        Route("/metrics", metrics),
        *dock_routes(front.episodes, front.aliases, EPISODES),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guarded, access=front.access)],
        exception_handlers={TooLong: _too_long, json.JSONDecodeError: _no_json},
    )


class _Guarded:
    """Lets nobody in without the key: nothing of their requests is read."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            answer = self._access.refusal(Request(scope))
            if answer is not None:
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _too_long(request: Request, problem: Exception) -> Response:
    return refused(413, f"a request is at most {BODY_LIMIT >> 20} MiB")


async def _no_json(request: Request, problem: Exception) -> Response:
    status, told = speech.refusal(Wrong(speech.PARSE, f"no JSON: {problem}"), None, True)
    return EscapingJsonResponse(told, status)


async def _mcp(front: Front, request: Request, episode: Episode | None) -> Response:
    session = request.headers.get(SESSION)
    if episode is None and session is not None:
        episode = front.episodes.find(session)
        if episode is None:
            return refused(404, "no such session: initialize again")
    if request.method == "DELETE":
        if session is None or episode is None:
            return refused(405, "there is no session to end", {"allow": "POST"})
        await front.episodes.end(episode.name)
        return Response(status_code=204)
    if request.method == "GET":  # a stream of the server's own messages: there are none
        return refused(405, "this server sends nothing unasked", {"allow": "POST, DELETE"})
    return await front.answered(request, episode, await json_body(request))


def _state(server: Any) -> dict[str, Any]:
    if server.off:
        return {"off": server.off}
    return {"tools": len(server.tools), "waiting": len(server.waiting), "used": server.used, "per": server.per}
