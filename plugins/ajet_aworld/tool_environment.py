"""Configures the tools of an AWorld agent: AWorld's MCP client for one environment address.

Invariants: inside an episode, an environment of `ajet env up` returns an address of its own, ended with the episode, so
no episode reads another one's changes. A lost environment fails the episode, since AWorld reports the loss to its model
like any tool's error. A known token is sent; none is required.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from loguru import logger

from ajet.schema.addresses import is_loopback
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import ConfigError, EnvironmentFailure
from ajet_gaia.catalogue import SEED_NAMES
from ajet_mcp.running_environments import all_running, token_for
from ajet_mcp.servers import TOKEN
from ajet_mcp.thin.http import EPISODES
from ajet_mcp.thin.messages import STATELESS, request

if TYPE_CHECKING:
    from ajet.workflow.tuner import ModelTuner

ADDRESS = "MCP_SERVER_URL"
"""Environment variable: the address of the tools, as printed by `ajet env up`."""
SERVERS = "MCP_SERVERS"
"""Environment variable, and header of the same name: the servers, unless code names them."""
SERVER = "aworld-mcp"
PATIENCE_S = 600
"""Timeout of AWorld's client, as on AWorld's pages."""
REQUEST_TIMEOUT_S = 30.0
"""Timeout of ajet's requests to the environment."""
GAIA = "gaia-local"


def get_agent_tool_env_and_servers(
    url: str | Mapping[str, Any] | None = None,
    mcp_server_list: str = "",
    tool_config: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return `mcp_config` and `mcp_servers` of an AWorld Agent.

    Inside an episode, the address is the episode's own, if the environment has episodes.

    Args:
        url: Address of the tools; else MCP_SERVER_URL, else the environment running on this machine. May also be the
            `tool_config`.
        mcp_server_list: Servers ("a-server,b-server"); else MCP_SERVERS, else the GAIA environment's nineteen servers.
        tool_config: Mapping with `url`, `authorization`, `mcp_servers`, `server_name`, `type` and the three timeouts.

    Raises:
        ConfigError: the address is unknown.
        EnvironmentFailure: inside an episode, no environment answers at the address.
    """
    if isinstance(url, Mapping):
        url, tool_config = None, url
    settings = dict(tool_config or {})
    address = url or settings.get("url") or os.environ.get(ADDRESS) or _find_running()
    server_list = mcp_server_list or settings.get("mcp_servers") or os.environ.get(SERVERS) or ",".join(SEED_NAMES)
    server_names = server_list if isinstance(server_list, str) else ",".join(server_list)
    token = os.environ.get(TOKEN) or token_for(address)
    authorization = settings.get("authorization") or (f"Bearer {token}" if token else "")
    headers = {**({"Authorization": authorization} if authorization else {}), SERVERS: server_names}
    name = settings.get("server_name", SERVER)
    server_entry = {
        "type": settings.get("type", "streamable-http"),
        "url": _choose_url(address, headers),
        "headers": headers,
        "timeout": settings.get("timeout", PATIENCE_S),
        "sse_read_timeout": settings.get("sse_read_timeout", PATIENCE_S),
        "client_session_timeout_seconds": settings.get("client_session_timeout_seconds", PATIENCE_S),
    }
    return {"mcpServers": {name: server_entry}}, [*(server for server in server_names.split(",") if server), name]


class EpisodeTools:
    """Opens and ends the environment addresses of one episode."""

    def __init__(self) -> None:
        self._open_episodes: dict[str, dict[str, str]] = {}
        """Its episodes at environments -> headers of their requests."""
        self._lost_problems: list[str] = []

    def begin(self, address: str, headers: Mapping[str, str]) -> str:
        """Open an episode at the environment and return its address.

        An environment without episodes keeps its `address`. Raises EnvironmentFailure.
        """
        auth_headers = {key: value for key, value in headers.items() if key == "Authorization"}
        try:
            route = _find_episodes_route(address, auth_headers)
            if route is None:
                return address
            http_status, reply = send_request("POST", route, {**auth_headers, SERVERS: headers.get(SERVERS, "")}, {})
        except OSError as error:
            raise _make_unreachable_error(address, error) from error
        if http_status != 201:
            raise EnvironmentFailure(
                f"the environment at {address} opens no episode (HTTP status {http_status}): {reply.get('error', '')}"
            )
        self._open_episodes[f"{route}/{reply['episode']}"] = auth_headers
        _warn_missing(address, reply.get("lacks") or ())
        return urljoin(address, reply["path"])

    async def end(self) -> None:
        """End the opened episodes and record lost servers. Idempotent: a second call ends what a cancellation left."""
        while self._open_episodes:
            address, auth_headers = self._open_episodes.popitem()
            try:
                http_status, reply = await asyncio.to_thread(send_request, "DELETE", address, auth_headers, None)
            except OSError as error:
                self._lost_problems.append(f"the environment at {address} cannot be reached any more: {error}")
                continue
            if http_status == 404:
                self._lost_problems.append(f"the environment at {address} had ended")
            elif reply.get("lost"):
                # The environment reports what its episode has lost meanwhile.
                self._lost_problems.append(str(reply["lost"]))

    def require_no_loss(self) -> None:
        """Raise EnvironmentFailure if an environment was lost."""
        if self._lost_problems:
            raise EnvironmentFailure(f"the environment was lost during the episode: {self._lost_problems[0]}")


_episode: ContextVar[EpisodeTools | None] = ContextVar("ajet_aworld_tools", default=None)


@contextmanager
def open_episode_tools(tuner: ModelTuner) -> Iterator[EpisodeTools]:
    """Give tool configurations the episode's own addresses within the block."""
    tools = EpisodeTools()
    tuner.resources.callback(tools.end)
    token = _episode.set(tools)
    try:
        yield tools
    finally:
        _episode.reset(token)


_warned: set[tuple[str, ...]] = set()
"""Addresses and missing servers reported before."""


def _warn_missing(address: str, lacks: Sequence[str]) -> None:
    """Warn once per process that the environment at `address` lacks these servers."""
    if lacks and (address, *lacks) not in _warned:
        _warned.add((address, *lacks))
        logger.warning(
            "the environment at {} has no server {}: the agents get only the tools of its other servers",
            address,
            ", ".join(lacks),
        )


def _choose_url(address: str, headers: Mapping[str, str]) -> str:
    """Return the address of the present episode at an environment, or the environment's own address outside of
    episodes."""
    tools = _episode.get()
    return address if tools is None else tools.begin(address, headers)


def _find_running() -> str:
    """Return the address of the only environment on this machine, GAIA's if there are several. Raises ConfigError."""
    environments = all_running()
    names = [environment.name for environment in environments]
    candidates = [environment for environment in environments if environment.name == GAIA] or environments
    if len(candidates) != 1:
        situation = (
            f"the environments on this machine are: {', '.join(names)}"
            if names
            else "no environment runs on this machine"
        )
        raise ConfigError(
            f"The address of the tools is unknown: the variable {ADDRESS} is not set, and {situation}.",
            where=ADDRESS,
            do=f"start an environment (`ajet env up {GAIA}`), or export {ADDRESS} as that command prints it",
        )
    return f"{candidates[0].near}/mcp"


def _make_unreachable_error(address: str, problem: OSError) -> EnvironmentFailure:
    """Return the error for an environment that does not answer, with the addresses of those on this machine."""
    local = [f"{environment.name} at {environment.near}/mcp" for environment in all_running()]
    hint = f"; this machine has {', '.join(local)}: set {ADDRESS} to its address" if local else ""
    return EnvironmentFailure(f"no environment answers at {address} ({problem}){hint}")


def _find_episodes_route(address: str, sent: Mapping[str, str]) -> str | None:
    """Return the environment's URL that creates episodes, or None if the environment has no episodes.

    Args:
        sent: headers with the authorization.

    Raises:
        OSError: the environment cannot be reached.
    """
    headers = {**sent, "MCP-Protocol-Version": STATELESS, "Mcp-Method": "server/discover"}
    _, reply = send_request("POST", address, headers, request(1, "server/discover", {}, stateless=True))
    metadata = reply.get("result", {}).get("_meta", {}) if isinstance(reply.get("result"), dict) else {}
    path = metadata.get(EPISODES) if isinstance(metadata, dict) else None
    return urljoin(address, path) if isinstance(path, str) and path else None


def send_request(method: str, url: str, headers: Mapping[str, str], body: Any) -> tuple[int, dict[str, Any]]:
    """Send a JSON request to an environment.

    Returns:
        (HTTP status, the reply's JSON object). The object is {} if the reply is something else.

    Raises:
        OSError: the environment cannot be reached, or does not answer in REQUEST_TIMEOUT_S seconds.
    """
    import httpx

    all_headers = {**headers, "Accept": "application/json, text/event-stream"}
    try:
        # Proxies of the environment variables must not be used for this machine.
        is_remote = not is_loopback(urlsplit(url).hostname)
        response = httpx.request(
            method, url, headers=all_headers, json=body, timeout=REQUEST_TIMEOUT_S, trust_env=is_remote
        )
    except httpx.HTTPError as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
    content = None
    with suppress(ValueError):
        content = load_json(response.content)
    return response.status_code, content if isinstance(content, dict) else {}
