"""AgentDock's HTTP interface, on the same port under `/mcpapi`.

Invariant: the interface has no sessions. A call names its episode in the header `x-episode`, else it reaches shared
servers only. An error is a reply with HTTP status 200 and `status_code` in the body, as AgentDock's clients expect,
plus `boundary` (which side failed) for ajet's clients. The reply that lists the servers carries the header
`x-episodes`, the path to create episodes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ajet.schema.errors import AjetError, BoundaryError, EnvironmentFailure
from ajet_environments.front.episodes import FrontEpisode, FrontEpisodes, UnknownToolError
from ajet_environments.front.http import EscapingJsonResponse, read_json_body

_FUNCTION = {"name": "name", "description": "description", "parameters": "inputSchema"}
"""Fields of a tool for AgentDock's clients, each with its MCP field."""


def build_dock_routes(episodes: FrontEpisodes, aliases: Mapping[str, str], episodes_path: str) -> list[Route]:
    """Build the four routes of AgentDock's interface.

    Args:
        aliases: alternative server names, each with the real name.
        episodes_path: URL path that creates an episode.
    """

    async def servers(request: Request) -> Response:
        """List the server names; the header says where episodes are created."""
        return EscapingJsonResponse({"servers": list(episodes.servers)}, headers={"x-episodes": episodes_path})

    async def tools(request: Request) -> Response:
        """List the tools of all servers."""
        return EscapingJsonResponse(
            {"tools": [_describe_tool(name, tool) for name in episodes.servers for tool in _list_tools(name)]}
        )

    async def tools_of(request: Request) -> Response:
        """List the tools of the server in the path, whose name may be an alias."""
        name = aliases.get(request.path_params["server"], request.path_params["server"])
        if name not in episodes.servers:
            return _build_error(404, f"there is no server {name!r}")
        return EscapingJsonResponse(
            {"server": name, "tools": [_describe_tool(name, tool) for tool in _list_tools(name)]}
        )

    async def call(request: Request) -> Response:
        """Call the tool SERVER.TOOL in the path, in the episode of the header `x-episode`.

        Without the header, only shared servers can be called.
        """
        server, _, tool = request.path_params["tool"].partition(".")  # SERVER.TOOL
        server = aliases.get(server, server)
        episode_name = request.headers.get("x-episode", "")
        episode = episodes.find(episode_name) if episode_name else FrontEpisode("", is_stateless=True)
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
        """Return a tool in AgentDock's form, with a `function` field as in OpenAI's API."""
        function = {key: tool.get(mcp_key, "") for key, mcp_key in _FUNCTION.items()}
        return {**tool, "name": f"{server}.{tool['name']}", "server": server, "type": "function", "function": function}

    return [
        Route("/mcpapi/servers", servers),
        Route("/mcpapi/tools", tools),
        Route("/mcpapi/server/{server}/tools", tools_of),
        Route("/mcpapi/tool/{tool}", call, methods=["POST"]),
    ]


def _build_error(status: int, detail: str, problem: BoundaryError | None = None) -> Response:
    """Build AgentDock's form of an error: HTTP status 200, with the status in the body.

    `problem` adds which side failed, and whether a retry may help.
    """
    boundary_fields = {} if problem is None else {"boundary": problem.boundary, "retryable": problem.retryable}
    return EscapingJsonResponse({"status_code": status, "detail": detail, **boundary_fields})


def _join_text(result: Any) -> str:
    """Return the text blocks of an MCP result, one per line."""
    return "\n".join(block.get("text", "") for block in result.get("content", []) if block.get("type") == "text")


# The server side of MCP, both eras: one JSON-RPC message in, its reply out.
# Invariant: every message gets a JSON-RPC reply with the status of its era; an ambiguous message belongs to the era
# named in the message. Eras: the handshake (up to 2025-11-25: `initialize`, `Mcp-Session-Id`) and the stateless
# revision 2026-07-28, with the version in headers and in `params._meta`
# (https://modelcontextprotocol.io/specification).
MODERN = "2026-07-28"
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
META = "io.modelcontextprotocol/"
EPISODES, SEVERAL = "ajet/episodes", "ajet/several"
PARSE = -32700
INVALID = -32600
NO_METHOD = -32601
PARAMS = -32602
MISMATCH, UNSUPPORTED, ENVIRONMENT = -32020, -32022, -32050
"""The last is ajet's: a failure of the environment, not of the model; the episode or the call is lost."""
_STATUS = {PARSE: 400, INVALID: 400, PARAMS: 400, MISMATCH: 400, UNSUPPORTED: 400, NO_METHOD: 404}
CAPABILITIES = {"tools": {"listChanged": False}}


class JsonRpcError(AjetError):
    """Carries the code and message of a JSON-RPC error reply."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True)
class McpRequest:
    """A parsed JSON-RPC request. `modern` is True for the stateless MCP revision."""

    method: str
    params: Mapping[str, Any]
    id: str | int | None
    """None: a notification, without a reply."""
    modern: bool


def parse_request(message: Any, headers: Mapping[str, str]) -> McpRequest:
    """Parse and validate one JSON-RPC message of an MCP client.

    Args:
        headers: HTTP headers with lower-case names; they decide the protocol revision.

    Raises:
        JsonRpcError: the message is invalid.
    """
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        raise JsonRpcError(INVALID, "expected one JSON-RPC 2.0 request, an object with `method`")
    request_id = message.get("id")
    if request_id is not None and (isinstance(request_id, bool) or not isinstance(request_id, (str, int))):
        raise JsonRpcError(INVALID, "`id` must be a string or an integer")
    params = message.get("params", {})
    if not isinstance(params, dict):
        raise JsonRpcError(PARAMS, "`params` must be an object")
    meta = params.get("_meta")
    version = meta.get(f"{META}protocolVersion") if isinstance(meta, dict) else None
    header_version = headers.get("mcp-protocol-version", "")
    # A version in `_meta`, or an unknown version in the header, marks the stateless revision.
    modern = version is not None or header_version not in ("", *HANDSHAKE)
    if modern and request_id is not None:
        _check_modern(message["method"], params, version, headers)
    return McpRequest(message["method"], params, request_id, modern)


def _check_modern(method: str, params: Mapping[str, Any], meta_version: Any, headers: Mapping[str, str]) -> None:
    """Raise JsonRpcError unless headers and `_meta` of a stateless request agree on version, method and tool."""
    version = headers.get("mcp-protocol-version")
    if meta_version is None:
        if version != MODERN:
            raise JsonRpcError(
                UNSUPPORTED, f"this server does not support version {version} of the protocol", _list_versions(version)
            )
        raise JsonRpcError(PARAMS, f"params._meta is missing {META}protocolVersion")
    if version != meta_version:
        raise JsonRpcError(MISMATCH, "the header MCP-Protocol-Version differs from the version in params._meta")
    if headers.get("mcp-method") != method:
        raise JsonRpcError(MISMATCH, "the header Mcp-Method differs from the method of the request")
    if method == "tools/call" and _decode_header(headers.get("mcp-name", "")) != params.get("name"):
        raise JsonRpcError(MISMATCH, "the header Mcp-Name differs from the tool of the request")
    if meta_version != MODERN:
        raise JsonRpcError(
            UNSUPPORTED,
            f"this server does not support version {meta_version} of the protocol",
            _list_versions(meta_version),
        )


def _list_versions(requested: Any) -> dict[str, Any]:
    """Return the data of MCP's error for an unsupported protocol version."""
    return {"supported": [MODERN, *HANDSHAKE], "requested": requested}


def _decode_header(value: str) -> str | None:
    """Decode a header value: base64 UTF-8 if it has MCP's form =?base64?…?=, else the value itself.

    Returns None if the base64 or the UTF-8 is invalid.
    """
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def build_handshake(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Build the result of `initialize`, which confirms a supported protocol version.

    Args:
        params: parameters of the client's request.
        name: name of the environment.
    """
    version = params.get("protocolVersion")
    return {
        "protocolVersion": version if version in HANDSHAKE else HANDSHAKE[0],
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": name, "version": "1"},
    }


def build_discovery(name: str, episodes: str = "", *, several: bool = False) -> dict[str, Any]:
    """Build the result of `server/discover`.

    Args:
        name: name of the environment.
        episodes: URL path that creates an episode; "" inside an episode.
        several: True if several processes serve the same address.
    """
    meta = {
        **_describe_server(name),
        **({EPISODES: episodes} if episodes else {}),
        **({SEVERAL: True} if several else {}),
    }
    return {"supportedVersions": [MODERN], "capabilities": CAPABILITIES, "_meta": meta}


def build_reply(request: McpRequest, result: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Wrap a method's result in a JSON-RPC reply of the client's protocol revision."""
    if request.modern:
        result = {"resultType": "complete", **result}
        result.setdefault("_meta", _describe_server(name))
        if request.method in ("tools/list", "server/discover"):
            result |= {"ttlMs": 0, "cacheScope": "private"}
    return {"jsonrpc": "2.0", "id": request.id, "result": result}


def build_error(wrong: JsonRpcError, id: Any, modern: bool) -> tuple[int, dict[str, Any]]:
    """Build the JSON-RPC error reply for a failed request.

    Args:
        id: id of the failed request; None if unknown.
        modern: True for the stateless MCP revision, which maps errors to HTTP statuses.

    Returns:
        (HTTP status, JSON body).
    """
    error: dict[str, Any] = {"code": wrong.code, "message": wrong.message}
    if wrong.data is not None:
        error["data"] = wrong.data
    status = _STATUS.get(wrong.code, 200) if modern or wrong.code in (PARSE, INVALID) else 200
    return status, {"jsonrpc": "2.0", "id": id, "error": error}


def _describe_server(name: str) -> dict[str, Any]:
    """Return MCP's metadata with the environment's name and version."""
    return {f"{META}serverInfo": {"name": name, "version": "1"}}
