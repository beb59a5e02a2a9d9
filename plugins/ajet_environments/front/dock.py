"""AgentDock's HTTP interface on the same port: `/mcpapi`.

Invariant: the interface has no sessions: a call names its episode in the header `x-episode`, or uses shared servers
only. An error is a reply with status 200 and `status_code`, as AgentDock's clients expect, plus `boundary` for ajet's
clients. The header `x-episodes` of the list of servers gives the path to create episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ajet.schema.errors import BoundaryError, EnvironmentFailure
from ajet_environments.front.episodes import FrontEpisode, FrontEpisodes, UnknownToolError
from ajet_environments.front.http import EscapingJsonResponse, read_json_body

_FUNCTION = {"name": "name", "description": "description", "parameters": "inputSchema"}
"""Fields of a tool for AgentDock's clients, each with its MCP field."""


def build_dock_routes(episodes: FrontEpisodes, aliases: Mapping[str, str], episodes_path: str) -> list[Route]:
    """Build the four routes. `aliases`: other names of servers; `episodes_path`: the path to create an episode."""

    async def servers(request: Request) -> Response:
        return EscapingJsonResponse({"servers": list(episodes.servers)}, headers={"x-episodes": episodes_path})

    async def tools(request: Request) -> Response:
        return EscapingJsonResponse(
            {"tools": [_describe_tool(name, tool) for name in episodes.servers for tool in _list_tools(name)]}
        )

    async def tools_of(request: Request) -> Response:
        name = aliases.get(request.path_params["server"], request.path_params["server"])
        if name not in episodes.servers:
            return _build_error(404, f"there is no server {name!r}")
        return EscapingJsonResponse(
            {"server": name, "tools": [_describe_tool(name, tool) for tool in _list_tools(name)]}
        )

    async def call(request: Request) -> Response:
        server, _, tool = request.path_params["tool"].partition(".")
        server = aliases.get(server, server)
        named = request.headers.get("x-episode", "")
        episode = episodes.find(named) if named else FrontEpisode("", is_stateless=True)
        if episode is None:
            return _build_error(404, "there is no such episode", EnvironmentFailure("", retryable=False))
        arguments = await read_json_body(request)
        if not isinstance(arguments, dict):
            return _build_error(400, "the arguments must be an object")
        try:
            result = await episodes.call(episode, tool, arguments, [server])
        except UnknownToolError as unknown:
            return _build_error(404, str(unknown))
        except BoundaryError as problem:
            return _build_error(500, f"the environment was lost: {problem}", problem)
        if result.get("isError"):
            return _build_error(500, _join_text(result))
        return EscapingJsonResponse({"content": result.get("content", [])})

    def _list_tools(name: str) -> Any:
        return episodes.servers[name].tools

    def _describe_tool(server: str, tool: Any) -> dict[str, Any]:
        function = {key: tool.get(here, "") for key, here in _FUNCTION.items()}
        return {**tool, "name": f"{server}.{tool['name']}", "server": server, "type": "function", "function": function}

    return [
        Route("/mcpapi/servers", servers),
        Route("/mcpapi/tools", tools),
        Route("/mcpapi/server/{server}/tools", tools_of),
        Route("/mcpapi/tool/{tool}", call, methods=["POST"]),
    ]


def _build_error(status: int, detail: str, problem: BoundaryError | None = None) -> Response:
    whose = {} if problem is None else {"boundary": problem.boundary, "retryable": problem.retryable}
    return EscapingJsonResponse({"status_code": status, "detail": detail, **whose})


def _join_text(result: Any) -> str:
    return "\n".join(part.get("text", "") for part in result.get("content", []) if part.get("type") == "text")
