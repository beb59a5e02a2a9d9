"""Front: the HTTP routes and access rules of an environment's server (the front).

    POST   /episodes            {"servers": [...]?} -> {"episode", "path"}: a new episode; with "url", the direct
                                address, if several processes share one address, and "lacks", names of the header
                                MCP_SERVERS unknown here
    DELETE /episodes/NAME       end it; {"lost"} says why, if a server was lost
    POST   /e/NAME/mcp          MCP of both protocol generations, for that episode
    *      /mcp                 MCP for clients without episodes: by session (older protocol), or shared servers only
    *      /mcpapi/...          AgentDock's interface
    GET    /health /metrics

Invariant: a request passes Host, Origin, token and size checks in this order; a refusal uses the protocol of the
request. The header MCP_SERVERS may name servers of several environments: known names count, unknown names are reported,
and a header with no known name is refused.
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
from ajet_environments.front import dock
from ajet_environments.front.dock import JsonRpcError, build_dock_routes
from ajet_environments.front.episodes import EnvironmentFullError, FrontEpisode, FrontEpisodes, UnknownToolError
from ajet_environments.front.http import (
    BODY_LIMIT,
    BodyTooLongError,
    EscapingJsonResponse,
    build_refusal,
    read_json_body,
)

REAP_EVERY = 5.0
SESSION = "mcp-session-id"
EPISODES = "/episodes"


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Checks Host, Origin and bearer token of a request.

    Args:
        token: "" admits every client (only on loopback, by explicit choice).
        hosts: accepted Host headers; None accepts any.
    """

    token: str = ""
    hosts: frozenset[str] | None = None

    def check_request(self, request: Request) -> Response | None:
        """Return an error response if the request must be refused, else None."""
        host = request.headers.get("host", "")
        if self.hosts is not None and host.lower() not in self.hosts:
            return build_refusal(421, f"the Host header {host!r} is not an address of this server")
        origin = request.headers.get("origin")
        if origin is not None and parse_netloc(origin) != host:
            return build_refusal(403, "a web page of another origin may not call tools")
        if self.token:
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(token.encode(), self.token.encode()):
                return build_refusal(401, "the token is missing or wrong", {"www-authenticate": "Bearer"})
        return None


class Front:
    """Handles the HTTP requests of one environment on one event loop."""

    def __init__(
        self, name: str, episodes: FrontEpisodes, access: AccessRule, aliases: Mapping[str, str], address: str = ""
    ) -> None:
        """Create the handler of an environment.

        Args:
            name: name of the environment, reported to clients.
            aliases: alternative server names accepted in headers, each with the real name.
            address: URL of exactly this process, if several processes serve the same address; else "".
        """
        self.name = name
        self.episodes = episodes
        self.access = access
        self.address = address
        self.aliases = aliases
        """Other names of servers, accepted in headers."""
        self._reap_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task that ends idle episodes."""
        self._reap_task = asyncio.get_running_loop().create_task(self._reap_episodes())

    async def close(self) -> None:
        """End all episodes once their running calls have finished."""
        if self._reap_task is not None:
            self._reap_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._reap_task
        await self.episodes.close()

    async def _reap_episodes(self) -> None:
        while True:
            await asyncio.sleep(min(REAP_EVERY, self.episodes.idle))
            await self.episodes.reap()

    def select_servers(self, request: Request) -> list[str] | None:
        """Return the server names in the header MCP_SERVERS that exist here, or None for all servers.

        If none of the names exists, all are returned, so that the later check reports them.
        """
        names = self._read_server_names(request)
        return None if names is None else [name for name in names if name in self.episodes.servers] or names

    def find_unknown_servers(self, request: Request) -> list[str]:
        """Return the names in the header MCP_SERVERS that this environment lacks."""
        return [name for name in self._read_server_names(request) or () if name not in self.episodes.servers]

    def _read_server_names(self, request: Request) -> list[str] | None:
        """Return the real server names in the header MCP_SERVERS without duplicates, or None without the header."""
        header = request.headers.get("mcp_servers") or request.headers.get("mcp-servers")
        if header is None:
            return None
        names = [name.strip() for name in header.split(",") if name.strip()]
        return list(dict.fromkeys(self.aliases.get(name, name) for name in names))

    async def answer_message(self, request: Request, episode: FrontEpisode | None, message: Any) -> Response:
        """Answer one JSON-RPC message of an MCP client.

        Args:
            episode: the episode in the URL or session header; None for a client without one. `initialize` then creates
                one.
            message: the parsed JSON body.
        """
        id = message.get("id") if isinstance(message, dict) else None
        modern = request.headers.get("mcp-protocol-version") == dock.MODERN
        headers: dict[str, str] = {}
        try:
            parsed = dock.parse_request(message, request.headers)
            modern = parsed.modern
            if parsed.id is None:
                return Response(status_code=202)
            if parsed.method == "initialize":
                if episode is None:
                    episode = self._create_episode(self.select_servers(request))
                    headers[SESSION] = episode.name
                result: Mapping[str, Any] = dock.build_handshake(parsed.params, self.name)
            else:
                result = await self._build_result(parsed, episode, self._require_servers(request))
        except JsonRpcError as wrong:
            status, body = dock.build_error(wrong, id, modern)
            return EscapingJsonResponse(body, status, headers=headers)
        return EscapingJsonResponse(dock.build_reply(parsed, result, self.name), headers=headers)

    def _create_episode(self, servers: Sequence[str] | None) -> FrontEpisode:
        """Create an episode with these servers (None: all). Failures become JSON-RPC errors."""
        try:
            return self.episodes.create(servers)
        except EnvironmentFullError as full:
            raise JsonRpcError(dock.ENVIRONMENT, str(full), {"boundary": "environment", "retryable": True}) from full
        except UnknownToolError as unknown:
            raise JsonRpcError(dock.PARAMS, str(unknown)) from unknown

    def _require_servers(self, request: Request) -> Sequence[str] | None:
        """Return the servers of the header MCP_SERVERS (None: all). Raises JsonRpcError for unknown names."""
        try:
            return self.episodes.check_servers(self.select_servers(request))
        except UnknownToolError as unknown:
            raise JsonRpcError(dock.PARAMS, str(unknown)) from unknown

    async def _build_result(
        self, request: dock.McpRequest, episode: FrontEpisode | None, servers: Sequence[str] | None
    ) -> Mapping[str, Any]:
        """Return the result of one MCP method other than `initialize`.

        Args:
            episode: None for a client without an episode, which reaches shared servers only.
            servers: names of the servers whose tools count; None for the episode's selection.

        Raises:
            JsonRpcError: the method, tool or parameters are invalid, or the environment was lost.
        """
        if request.method == "ping":
            return {}
        if request.method == "server/discover":
            return dock.build_discovery(self.name, "" if episode is not None else EPISODES, several=bool(self.address))
        episode = episode or FrontEpisode("", is_stateless=True)
        if request.method == "tools/list":
            return {"tools": self.episodes.list_tools(episode, servers)}
        if request.method != "tools/call":
            raise JsonRpcError(dock.NO_METHOD, f"Method not found: {request.method}")
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise JsonRpcError(dock.PARAMS, "`name` must be a string and `arguments` an object")
        try:
            return await self.episodes.call(episode, name, arguments, servers)
        except UnknownToolError as unknown:
            raise JsonRpcError(dock.PARAMS, str(unknown)) from unknown
        except BoundaryError as problem:
            data = {"boundary": problem.boundary, "retryable": problem.retryable}
            raise JsonRpcError(dock.ENVIRONMENT, f"the environment was lost: {problem}", data) from problem


def build_front(front: Front) -> Starlette:
    """Build the ASGI app with all routes and the access check."""

    async def mcp(request: Request) -> Response:
        """Answer an MCP request without an episode in its URL."""
        return await _serve_mcp(front, request, None)

    async def mcp_of_episode(request: Request) -> Response:
        """Answer an MCP request to the URL of one episode."""
        episode = front.episodes.find(request.path_params["episode"])
        if episode is None:
            return build_refusal(404, "there is no such episode: it has ended, or its environment was restarted")
        return await _serve_mcp(front, request, episode)

    async def create(request: Request) -> Response:
        """Create an episode (POST /episodes) and return its id and path."""
        body = await read_json_body(request)
        servers = body.get("servers") if isinstance(body, dict) else None
        if servers is not None and not (isinstance(servers, list) and all(isinstance(name, str) for name in servers)):
            return build_refusal(400, "`servers` must be a list of names")
        try:
            episode = front.episodes.create(servers)
        except EnvironmentFullError as full:
            return build_refusal(503, str(full), {"retry-after": "1"})
        except UnknownToolError as unknown:
            return build_refusal(400, str(unknown))
        path = f"/e/{episode.name}/mcp"
        optional_fields: dict[str, Any] = {"url": front.address + path} if front.address else {}
        if lacks := front.find_unknown_servers(request):
            optional_fields["lacks"] = lacks
        return EscapingJsonResponse({"episode": episode.name, "path": path, **optional_fields}, 201)

    async def end(request: Request) -> Response:
        """End an episode (DELETE /episodes/NAME), and report why one of its servers was lost."""
        episode = front.episodes.find(request.path_params["episode"])
        if episode is None or not await front.episodes.end(episode.name):
            return build_refusal(404, "there is no such episode")
        return EscapingJsonResponse({"lost": episode.lost}) if episode.lost else Response(status_code=204)

    async def health(request: Request) -> Response:
        """Report the number of open episodes and the state of each server's pool."""
        servers = {name: _describe_pool(server) for name, server in front.episodes.servers.items()}
        status = "draining" if front.episodes.is_draining else "success"
        return EscapingJsonResponse(
            {"status": status, "name": front.name, "episodes": len(front.episodes), "servers": servers}
        )

    async def metrics(request: Request) -> Response:
        """Return the counters in Prometheus's text format."""
        lines = [f"ajet_env_open_episodes {len(front.episodes)}"]
        lines += [f"ajet_env_{name}_total {count}" for name, count in sorted(front.episodes.counts.items())]
        return PlainTextResponse("\n".join(lines) + "\n")

    methods = ["GET", "POST", "DELETE"]
    routes = [
        Route("/mcp", mcp, methods=methods),
        Route("/e/{episode}/mcp", mcp_of_episode, methods=methods),
        Route(EPISODES, create, methods=["POST"]),
        Route(f"{EPISODES}/{{episode}}", end, methods=["DELETE"]),
        Route("/health", health),
        Route("/metrics", metrics),
        *build_dock_routes(front.episodes, front.aliases, EPISODES),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_AccessGuard, access=front.access)],
        exception_handlers={BodyTooLongError: _answer_too_long, json.JSONDecodeError: _answer_no_json},
    )


class _AccessGuard:
    """ASGI middleware that refuses unauthorized requests before their body is read.

    The path /health needs no token.
    """

    def __init__(self, app: ASGIApp, access: AccessRule) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the app, or send the refusal of the access rule."""
        if scope["type"] == "http" and scope["path"] != "/health":
            refusal = self._access.check_request(Request(scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _answer_too_long(request: Request, problem: Exception) -> Response:
    return build_refusal(413, f"the request is longer than {BODY_LIMIT >> 20} MiB")


async def _answer_no_json(request: Request, problem: Exception) -> Response:
    status, body = dock.build_error(JsonRpcError(dock.PARSE, f"the body is not JSON: {problem}"), None, True)
    return EscapingJsonResponse(body, status)


async def _serve_mcp(front: Front, request: Request, episode: FrontEpisode | None) -> Response:
    """Answer one HTTP request of MCP: a POST with a message, or the DELETE that ends a session.

    Args:
        episode: the episode in the URL; None to look it up by the session header.
    """
    session = request.headers.get(SESSION)
    if episode is None and session is not None:
        episode = front.episodes.find(session)
        if episode is None:
            return build_refusal(404, "there is no such session: call initialize again")
    if request.method == "DELETE":
        if session is None or episode is None:
            return build_refusal(405, "there is no session to end", {"allow": "POST"})
        await front.episodes.end(episode.name)
        return Response(status_code=204)
    if request.method == "GET":  # a stream of the server's own messages: there are none
        return build_refusal(405, "this server sends no unrequested messages", {"allow": "POST, DELETE"})
    return await front.answer_message(request, episode, await read_json_body(request))


def _describe_pool(server: Any) -> dict[str, Any]:
    """Return the state of a server's pool for /health."""
    if server.off:
        return {"off": server.off}
    return {"tools": len(server.tools), "waiting": len(server.waiting), "used": server.used, "per": server.per}
