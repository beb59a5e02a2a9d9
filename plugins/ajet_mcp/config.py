"""`rollout.mcp_agent`: the agent that is a system prompt and the tools of `environment.use`."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import OWN_AGENTS, SERVE, Section, key, section
from ajet.config.schema.extended import PluginKeys


class McpAgent(Section):
    """The agent that comes with ajet, for `user_workflow: mcp_agent`."""

    system_prompt: str | None = key(None, "Its system prompt; null: one sentence that says how to answer.")
    max_steps: int | None = key(None, "Model calls of an attempt, at most; null: `rollout.multi_turn.max_steps`.", ge=1)
    parallel: int = key(4, "Tool calls of one reply that run at the same time, at most.", ge=1)
    max_result_tokens: int | None = key(
        None, "Tokens of a tool's result that the model is shown; null: a quarter of `rollout.max_model_len`.", ge=1
    )
    on_overflow: Literal["disabled", "discard_all_tools", "discard_all", "summarize"] = key(
        "disabled",
        "When the context would overflow: the episode fails (disabled); tool calls and their results are left out "
        "(discard_all_tools); only the task stays (discard_all); the model's own summary takes the place of what was "
        "(summarize). What it wrote before is trained all the same; each change is a fork.",
    )
    on_format_error: Literal["continue", "end"] = key(
        "continue",
        "When a tool call cannot be carried out as written, or a reply has neither call nor answer: the model is told, "
        "or the attempt ends there.",
    )
    on_repetition: Literal["continue", "end"] = key(
        "continue", "When a reply is the same for the third time in a row: go on, or end the attempt there."
    )
    on_tool_failure: Literal["continue", "end"] = key(
        "continue",
        "When a tool says that it failed, or gives no answer in time: the model is told, or the episode fails as the "
        "tool's doing (it is not trained on). One whose server is lost always fails so. Where no model of the browse "
        "agent answers: the page is shown as it is, cut, or the episode fails as the environment's doing.",
    )
    browse: bool = key(
        False,
        "Have a second model condense long results of some tools for the purpose of the call, as "
        "`environment.agent_config` says. It is recorded and never trained.",
    )


class AgentKeys(PluginKeys):
    """The section of the agent."""

    mcp_agent: McpAgent = section(
        McpAgent,
        "The agent that comes with ajet, for `user_workflow: mcp_agent`.",
        idle={SERVE: OWN_AGENTS},
        when=("rollout.user_workflow", "mcp_agent"),
        or_own=True,
    )
