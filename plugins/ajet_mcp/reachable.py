"""Checks before a run whether its tool servers and the browse agent's models are reachable.

Invariants: the check uses ajet's own client and the steps of an attempt: open a session, list the tools, close. Servers
given as a command are not checked. A run without tools loads no tool code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ajet.config.services import RequiredService
from ajet.environment.replay import replays_alone
from ajet.environment.services.chosen import is_service_url, is_world
from ajet.schema.commands import format_command
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet_mcp.servers import Server


AGENT = "mcp_agent"
"""Name of the workflow with a browse agent."""


def services_of(experiment: Experiment) -> Iterator[RequiredService]:
    """Yield one required service per tool server with an address."""
    environment = experiment.ajet.environment.use
    if replays_alone(experiment.ajet.environment):
        return
    if not environment or is_service_url(environment) or is_world(environment):
        return
    from ajet_mcp.servers import KEY, servers_of

    try:
        servers = servers_of(environment, experiment.base)
    except ConfigError:  # the value is for a custom workflow; `mcp_agent` reports an unusable value itself
        return
    for server in servers:
        if server.kind == "stdio":
            continue
        is_dock = server.kind == "dock"
        yield RequiredService(
            "AgentDock server" if is_dock else "MCP server",
            server.url,
            KEY,
            partial(find_server_problem, server),
            "AgentDock's interface" if is_dock else "an MCP server with a list of tools",
            f"start it (`{format_command('env', 'up', 'FILE')}` starts one of yours; `ajet.services` starts it "
            "with the run), or correct the address; ajet reads the token from MCP_SERVER_TOKEN",
        )


def list_browse_models(experiment: Experiment) -> Iterator[RequiredService]:
    """Yield the browse agent's models as one service. Custom workflows are skipped."""
    if replays_alone(experiment.ajet.environment) or experiment.ajet.rollout.user_workflow != AGENT:
        return
    from ajet.environment.chat_model import KEY as AGENT_CONFIG
    from ajet.environment.chat_model import explain_no_model
    from ajet_mcp.browse.agent_config import SWITCH, browse_agent_of

    agent = browse_agent_of(experiment.config)
    if agent is None:
        return
    first_model = agent.models[0]
    yield RequiredService(
        "model of the browse agent",
        " or ".join(dict.fromkeys(model.place for model in agent.models)),
        AGENT_CONFIG if experiment.ajet.environment.agent_config else SWITCH,
        partial(explain_no_model, agent.models, named="browse agent"),
        f"an OpenAI-compatible server that has {first_model.model}, or one of the further models",
        "start it (deploy/model/docker-compose.yml serves one), or correct base_url, model and api_key in the file",
    )


def find_server_problem(server: Server, seconds: float) -> str:
    """Return why no tool of the server can be used; "" if the server lists tools.

    Args:
        seconds: limit on the start of the session and on each request.
    """
    return asyncio.run(_find_server_problem(server, seconds))


async def _find_server_problem(server: Server, seconds: float) -> str:
    """Open a session with the server, list its tools and close the session. Return the problem, or ""."""
    from ajet.environment.loop import on_tools_loop
    from ajet_mcp.contract import CallFailedError, Limits
    from ajet_mcp.thin import ThinClient

    limits = Limits(start=seconds, call=seconds, close=1.0)
    try:
        session = await on_tools_loop(ThinClient().open(server, limits), unclaimed=lambda late: late.close())
        try:
            tools = await on_tools_loop(session.tools())
        finally:
            await on_tools_loop(session.close())
    except CallFailedError as problem:
        return str(problem)
    return "" if tools else "the server offers no tools"
