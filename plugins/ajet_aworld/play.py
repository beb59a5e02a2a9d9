"""Runs one task with AWorld's own runner.

Invariants: an agent with an address of the episode uses the episode's client under its own name, so its calls form
token sequences of their own. Models of other agents are not touched. No request is repeated: the gateway records a
failed call. A tool's result reaches the model complete, since the gateway has its own limits. An agent with a tool that
did not start, or a lost call, has failed, whatever its answer. A call that may have reached its server is not repeated.

Imports AWorld: import it only to run an episode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

from aworld.config import ConfigDict
from aworld.config.conf import HistoryWriteStrategy, TaskConfig
from aworld.core.agent.base import BaseAgent
from aworld.core.agent.swarm import Swarm
from aworld.core.task import Task, TaskResponse
from aworld.mcp_client import utils as calls
from aworld.memory import tool_result_compaction
from aworld.models.llm import LLMModel
from aworld.models.openai_provider import OpenAIProvider
from aworld.runner import Runners
from aworld.sandbox.run import mcp_servers
from aworld.sandbox.runtime.manager import SandboxManager

from ajet.schema.errors import AgentFailure, ToolFailure
from ajet.workflow.tuner import ModelTuner

_ENDLESS = 1 << 30
_ROUNDS = 10_000
# The limits are set globally, because some callers in AWorld do not read the agent's settings.
tool_result_compaction._TOOL_RESULT_CHAR_THRESHOLD = tool_result_compaction._TOOL_RESULT_LINE_THRESHOLD = _ENDLESS
_lost: dict[str, list[str]] = {}
"""Sandbox -> its tool calls without an answer."""
_problem: ContextVar[str] = ContextVar("ajet_aworld_call", default="")
"""The failure of the current call."""
_TIMEOUT, _OF_SERVERS = 408, range(-32099, -31999)
"""Errors independent of the request: the SDK's own (timeout, closed connection), and servers'."""
_CANCEL_TIMEOUT_S = 10.0
"""Seconds for AWorld's runner to end after a cancellation; 5 s of them are for its own tasks."""
_MAX_MESSAGE = 500
"""Characters of AWorld's messages in a failure."""


def _call_once(function: Any) -> Any:
    """Wrap AWorld's function that calls a tool, so that a lost call fails the episode.

    AWorld would report it to the model like a tool's own error.
    """

    async def call_tool(*args: Any, **keywords: Any) -> Any:
        """Call the tool once, and record its failure for the sandbox of the call, if the call was lost."""
        token = _problem.set("")
        try:
            result = await function(*args, **{**keywords, "max_retry": 1})
            if problem := _problem.get():
                _lost.setdefault(str(keywords.get("sandbox_id")), []).append(problem)
            return result
        finally:
            _problem.reset(token)

    return call_tool


def _record_problem(original: Any) -> Any:
    """Wrap AWorld's function that converts an exception to a tool's answer."""

    def make_result(server: str, tool: str, problem: Any, *args: Any) -> Any:
        """Store the problem if the call itself was lost, then make AWorld's answer."""
        code = getattr(getattr(problem, "error", None), "code", None)
        # Other codes are the tool's own errors, which the model must see.
        if code is None or code == _TIMEOUT or code in _OF_SERVERS:
            description = (
                f"no answer within {problem:g} s"
                if isinstance(problem, float)
                else f"{type(problem).__name__}: {problem}"
            )
            _problem.set(f"{server}__{tool}: {description}"[:_MAX_MESSAGE])
        return original(server, tool, problem, *args)

    return make_result


for _name in ("_make_exception_result", "_make_timeout_result"):
    setattr(calls, _name, _record_problem(getattr(calls, _name)))
for _name in ("call_mcp_tool_with_reuse", "call_mcp_tool_with_exit_stack"):
    setattr(mcp_servers, _name, _call_once(getattr(mcp_servers, _name)))


class EpisodeProvider(OpenAIProvider):
    """AWorld's model client over the episode's client, without retries."""

    def __init__(self, client: Any) -> None:
        """Create the provider without a connection of its own. `client` is the episode's OpenAI client."""
        self._episode_client, self.is_http_provider = client, False
        super().__init__("-", str(client.base_url), client.default_model, sync_enabled=False, async_enabled=True)

    def _init_async_provider(self) -> Any:
        """Return the episode's client. AWorld's constructor calls this method."""
        return self._episode_client


def list_agents(built: Any) -> list[Any]:
    """Return all agents of an Agent or a Swarm once, in order. Raises AgentFailure for other values."""
    agents: dict[int, Any] = {}
    _collect_agents(built, agents)
    if not agents:
        raise AgentFailure(f"build_agents() returned a {type(built).__name__}; expected an AWorld Agent or Swarm")
    return list(agents.values())


def _collect_agents(node: Any, agents: dict[int, Any]) -> None:
    """Add the agents in an Agent, a Swarm, or a nested list of these to `agents`, by identity."""
    if isinstance(node, BaseAgent):
        agents.setdefault(id(node), node)
    elif isinstance(node, Swarm):
        for member in (node.topology, node.register_agents, node.builder.root_agent):
            _collect_agents(member, agents)
    elif isinstance(node, (list, tuple)):
        for member in node:
            _collect_agents(member, agents)


def bind_agents(agents: Iterable[Any], addresses: Collection[str], tuner: ModelTuner) -> None:
    """Connect each agent whose address is one of `addresses` to the trained model."""
    used_names: set[str] = set()
    for agent in agents:
        settings = agent.conf.llm_config
        if settings.get("llm_base_url") in addresses:
            name = _choose_name(agent.name(), used_names)
            client = tuner.as_raw_openai_sdk_client(agent_name=name)
            agent._llm = LLMModel(conf=settings, custom_provider=EpisodeProvider(client))
            agent.llm_max_attempts = 1
        elif not settings.get("llm_provider"):
            settings["llm_provider"] = "openai"  # AWorld 0.3.2 requires the key, and drops it if it is None


def _choose_name(name: str, taken: set[str]) -> str:
    """Return a name that is not taken yet, with a number appended if needed, and add it to `taken`."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    taken.add(candidate)
    return candidate


async def run_agents(built: Any, agents: Sequence[Any], question: str, session: str) -> TaskResponse:
    """Run the agents on a question and return AWorld's answer.

    Args:
        built: the Agent or Swarm.
        session: session id of the AWorld task.

    Raises:
        ToolFailure, AgentFailure: the run failed.
    """
    missing_tools: list[str] = []
    for agent in agents:
        prepare_agent(agent, missing_tools)
    argument_name = "swarm" if isinstance(built, Swarm) else "agent"
    watchdog_limits = {f"post_tool_progress_watchdog_{limit}_seconds": _ENDLESS for limit in ("timeout", "poll")}
    # Without this AWorld restarts the turn of a slow model.
    task_config = ConfigDict({**TaskConfig().model_dump(), **watchdog_limits})
    task = Task(input=question, session_id=session, conf=task_config, **{argument_name: built})
    runner_task = asyncio.ensure_future(Runners.run_task(task))
    try:
        answers = await asyncio.shield(runner_task)
    finally:
        try:
            await _cancel_runner(runner_task)
        finally:  # its tools end even if the end is interrupted by another cancellation
            problems = [
                problem for agent in agents if agent.sandbox for problem in _lost.pop(str(agent.sandbox.sandbox_id), ())
            ]
            for agent in agents:
                await release_agent(agent)
    if missing_tools:
        raise ToolFailure(f"these tools could not be started: {', '.join(missing_tools)}")
    if problems:
        raise ToolFailure(f"a tool call was lost: {problems[0]}")
    answer = answers[task.id]
    if not answer.success:
        raise AgentFailure(f"AWorld: {answer.status}: {answer.msg}"[:_MAX_MESSAGE])
    return answer


async def _cancel_runner(running: asyncio.Future[Any]) -> None:
    """Cancel AWorld's runner until it ends: it repeats `asyncio.wait_for`, which in Python 3.11 loses a cancellation
    that arrives together with a message."""
    while not running.done():
        running.cancel()
        await asyncio.wait([running], timeout=_CANCEL_TIMEOUT_S)
    if not running.cancelled():
        running.exception()  # an exception that was not retrieved would be logged


def prepare_agent(agent: Any, missing: list[str]) -> None:
    """Prepare an agent for the episode.

    Args:
        missing: receives the names of servers without tools, once the agent has listed its tools.
    """
    memory_config = agent.memory_config
    settings = dict(memory_config) if isinstance(memory_config, dict) else memory_config.model_dump()
    settings |= {
        "history_write_strategy": HistoryWriteStrategy.DIRECT,  # a write by messages would wait for a poll
        "history_rounds": max(settings.get("history_rounds", 0), _ROUNDS),
        "tool_result_length_threshold": _ENDLESS,
    }
    agent.memory_config = agent.conf["memory_config"] = ConfigDict(settings)
    agent._save_failed_request_context = _do_nothing  # it would write complete prompts into the working directory
    list_tools = agent.async_desc_transform

    async def list_tools_and_check(context: Any) -> None:
        """List the agent's tools with AWorld's method, then note the servers that serve none."""
        await list_tools(context)
        missing.extend(f"{agent.name()} has none of {name}" for name in _find_toolless_servers(agent))

    agent.async_desc_transform = list_tools_and_check


async def release_agent(agent: Any) -> None:
    """Close the agent's tools and end AWorld's threads for them."""
    if agent.sandbox is None:
        return
    await agent.sandbox.cleanup()
    manager, sandbox_id = SandboxManager.get_instance(), agent.sandbox.sandbox_id
    for key in [key for key in manager.get_registered_sandbox_ids() if key.partition(":")[0] == sandbox_id]:
        runtime = manager._registry.pop(key, None)
        if runtime is not None:
            # A queue item without a function ends the thread.
            runtime.loop.call_soon_threadsafe(runtime.queue.put_nowait, (None, (), {}, Future()))


async def _do_nothing(*args: Any, **kwargs: Any) -> None: ...


def _find_toolless_servers(agent: Any) -> list[str]:
    """Return the names of MCP servers that the agent requests but that serve no tools.

    Servers that `agent.mcp_config` disables or does not list are left out. But if none of the requested servers is
    left, those that it does not list are returned, because the agent has no tools at all.
    """
    requested_servers, configured_servers = agent.mcp_servers or [], (agent.mcp_config or {}).get("mcpServers", {})
    enabled_servers = [
        name
        for name in requested_servers
        if name in configured_servers and not configured_servers[name].get("disabled")
    ]
    if requested_servers and not enabled_servers:
        return [name for name in requested_servers if name not in configured_servers]
    tools = getattr(getattr(agent.sandbox, "mcpservers", None), "tool_list", None) or []
    serving_servers = {tool.get("function", {}).get("name", "").partition("__")[0] for tool in tools}
    return [name for name in enabled_servers if name not in serving_servers]
