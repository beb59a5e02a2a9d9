"""Where an agent of AWorld finds its tools: the configuration of AWorld's MCP client for one address.

Invariants: inside an episode, an environment that has episodes (`ajet env up`) gives it an address of its own, ended
with it: what one episode writes no other reads. One that lost what the episode had done there fails the episode, for
AWorld tells its model of it as of any tool's error. A token that is known is sent; none is asked for.
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
"""Environment variable: the address of the tools, as `ajet env up` prints it."""
SERVERS = "MCP_SERVERS"
"""Environment variable, and the header of its name: which servers' tools, where nobody says it in code."""
SERVER = "aworld-mcp"
PATIENCE_S = 600
"""Of the client that the configuration is for, as AWorld's pages have it."""
REQUEST_TIMEOUT_S = 30.0
"""A request of ours to the environment."""
GAIA = "gaia-local"


def get_agent_tool_env_and_servers(
    url: str | Mapping[str, Any] | None = None,
    mcp_server_list: str = "",
    tool_config: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """`mcp_config` and `mcp_servers` of an AWorld Agent: those of `mcp_server_list` ("a-server,b-server"), else of
    MCP_SERVERS, else the GAIA environment's nineteen servers; at `url`, else at MCP_SERVER_URL, else at the environment
    that runs on this machine. `tool_config` has `url`, `authorization`, `mcp_servers`, `server_name`, `type` and the
    three timeouts; it may also stand first. Inside an episode the address is the episode's own, where the environment
    has episodes.

    Raises ConfigError where no address is known; EnvironmentFailure inside an episode where none is given."""
    if isinstance(url, Mapping):
        url, tool_config = None, url
    settings = dict(tool_config or {})
    address = url or settings.get("url") or os.environ.get(ADDRESS) or _find_running()
    chosen = mcp_server_list or settings.get("mcp_servers") or os.environ.get(SERVERS) or ",".join(SEED_NAMES)
    names = chosen if isinstance(chosen, str) else ",".join(chosen)
    token = os.environ.get(TOKEN) or token_for(address)
    authorization = settings.get("authorization") or (f"Bearer {token}" if token else "")
    headers = {**({"Authorization": authorization} if authorization else {}), SERVERS: names}
    name = settings.get("server_name", SERVER)
    entry = {
        "type": settings.get("type", "streamable-http"),
        "url": _choose_url(address, headers),
        "headers": headers,
        "timeout": settings.get("timeout", PATIENCE_S),
        "sse_read_timeout": settings.get("sse_read_timeout", PATIENCE_S),
        "client_session_timeout_seconds": settings.get("client_session_timeout_seconds", PATIENCE_S),
    }
    return {"mcpServers": {name: entry}}, [*(each for each in names.split(",") if each), name]


class EpisodeTools:
    """The addresses that an episode was given."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, str]] = {}
        """Of its episodes at environments -> what is sent with a request."""
        self._lost: list[str] = []

    def begin(self, address: str, headers: Mapping[str, str]) -> str:
        """An address of its own at the environment, or the address itself where that has no episodes. Raises
        EnvironmentFailure."""
        sent = {key: value for key, value in headers.items() if key == "Authorization"}
        try:
            at = _find_episodes_route(address, sent)
            if at is None:
                return address
            status, answer = _send_request("POST", at, {**sent, SERVERS: headers.get(SERVERS, "")}, {})
        except OSError as problem:
            raise _make_unreachable_error(address, problem) from problem
        if status != 201:
            raise EnvironmentFailure(f"{address} gives no episode (HTTP {status}): {answer.get('error', '')}")
        self._open[f"{at}/{answer['episode']}"] = sent
        _warn_missing(address, answer.get("lacks") or ())
        return urljoin(address, answer["path"])

    async def end(self) -> None:
        """End them, and hear whether one was lost. Idempotent; where it is cancelled, the next call ends the rest."""
        while self._open:
            address, sent = self._open.popitem()
            try:
                status, answer = await asyncio.to_thread(_send_request, "DELETE", address, sent, None)
            except OSError as problem:
                self._lost.append(f"{address} is gone: {problem}")
                continue
            if status == 404:
                self._lost.append(f"{address} had ended")
            elif answer.get("lost"):
                self._lost.append(str(answer["lost"]))

    def require_no_loss(self) -> None:
        """Raises EnvironmentFailure where one was lost."""
        if self._lost:
            raise EnvironmentFailure(f"environment lost: {self._lost[0]}")


_episode: ContextVar[EpisodeTools | None] = ContextVar("ajet_aworld_tools", default=None)


@contextmanager
def open_episode_tools(tuner: ModelTuner) -> Iterator[EpisodeTools]:
    """Within the block, tool addresses are this episode's own; they are ended with it at the latest."""
    tools = EpisodeTools()
    tuner.resources.callback(tools.end)
    token = _episode.set(tools)
    try:
        yield tools
    finally:
        _episode.reset(token)


_warned: set[tuple[str, ...]] = set()
"""Address and names of servers that were said to be lacking there."""


def _warn_missing(address: str, lacks: Sequence[str]) -> None:
    """Once in a process that these tools are not there."""
    if lacks and (address, *lacks) not in _warned:
        _warned.add((address, *lacks))
        logger.warning(
            "the environment at {} has no server {}: agents get the tools of those that it has",
            address,
            ", ".join(lacks),
        )


def _choose_url(address: str, headers: Mapping[str, str]) -> str:
    tools = _episode.get()
    return address if tools is None else tools.begin(address, headers)


def _find_running() -> str:
    """The address of the environment on this machine. Raises ConfigError."""
    found = all_running()
    names = [each.name for each in found]
    chosen = [each for each in found if each.name == GAIA] or found
    if len(chosen) != 1:
        have = f"these run here: {', '.join(names)}" if names else "none runs on this machine"
        raise ConfigError(
            f"Nothing says where the tools are: {ADDRESS} is not set, and {have}.",
            where=ADDRESS,
            do=f"start one (`ajet env up {GAIA}`), or export {ADDRESS} as it printed there",
        )
    return f"{chosen[0].near}/mcp"


def _make_unreachable_error(address: str, problem: OSError) -> EnvironmentFailure:
    here = [f"{each.name} at {each.near}/mcp" for each in all_running()]
    hint = f"; on this machine there is {', '.join(here)}: set {ADDRESS} to it" if here else ""
    return EnvironmentFailure(f"nothing answers at {address} ({problem}){hint}")


def _find_episodes_route(address: str, sent: Mapping[str, str]) -> str | None:
    """The route at which the server gives episodes; None where it has none. Raises OSError."""
    headers = {**sent, "MCP-Protocol-Version": STATELESS, "Mcp-Method": "server/discover"}
    _, answer = _send_request("POST", address, headers, request(1, "server/discover", {}, stateless=True))
    meta = answer.get("result", {}).get("_meta", {}) if isinstance(answer.get("result"), dict) else {}
    path = meta.get(EPISODES) if isinstance(meta, dict) else None
    return urljoin(address, path) if isinstance(path, str) and path else None


def _send_request(method: str, url: str, headers: Mapping[str, str], body: Any) -> tuple[int, dict[str, Any]]:
    """(status, the answer's JSON object; {} where it is none). Raises OSError."""
    import httpx

    accepts = {**headers, "Accept": "application/json, text/event-stream"}
    try:
        outside = not is_loopback(urlsplit(url).hostname)
        reply = httpx.request(method, url, headers=accepts, json=body, timeout=REQUEST_TIMEOUT_S, trust_env=outside)
    except httpx.HTTPError as problem:
        raise ConnectionError(str(problem) or type(problem).__name__) from problem
    answer = None
    with suppress(ValueError):
        answer = load_json(reply.content)
    return reply.status_code, answer if isinstance(answer, dict) else {}
