"""The section `rollout.mcp_agent`: settings of the agent with the tools of `environment.use`."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import OWN_AGENTS, SERVE, Section, key, section
from ajet.config.schema.extended import PluginKeys


class McpAgent(Section):
    """The agent included in ajet, selected by `user_workflow: mcp_agent`."""

    system_prompt: str | None = key(None, "System prompt; null: one sentence that describes the form of the answer.")
    max_steps: int | None = key(None, "Maximum model calls of an attempt; null: `rollout.multi_turn.max_steps`.", ge=1)
    parallel: int = key(4, "Maximum concurrent tool calls of one reply.", ge=1)
    max_result_tokens: int | None = key(
        None, "Maximum tokens of a tool result shown to the model; null: a quarter of `rollout.max_model_len`.", ge=1
    )
    on_overflow: Literal["disabled", "discard_all_tools", "discard_all", "summarize"] = key(
        "disabled",
        "What to do when the context is full: fail the episode (disabled), omit tool calls and their results "
        "(discard_all_tools), keep only the task (discard_all), or replace the history by the model's own "
        "summary (summarize). Omitted replies are still trained; each change begins a new token sequence.",
    )
    on_format_error: Literal["continue", "end"] = key(
        "continue",
        "What to do after an invalid tool call, or a reply with neither a call nor an answer: report the error "
        "to the model (continue), or end the attempt.",
    )
    on_repetition: Literal["continue", "end"] = key(
        "continue", "What to do if a reply occurs for the third time in a row: continue, or end the attempt."
    )
    on_tool_failure: Literal["continue", "end"] = key(
        "continue",
        "What to do if a tool fails or times out: report the failure to the model (continue), or fail the "
        "episode as a failure of the tool, without training on it (end). A lost server always fails the episode. "
        "If no model of the browse agent answers: show the page, cut (continue), or fail the episode as a "
        "failure of the environment (end).",
    )
    browse: bool = key(
        False,
        "Condense long results of some tools with a second model, for the purpose of the call, as configured in "
        "`environment.agent_config`. The second model is recorded and never trained.",
    )


class AgentKeys(PluginKeys):
    """Adds the section `mcp_agent` to `rollout`."""

    mcp_agent: McpAgent = section(
        McpAgent,
        "The agent included in ajet, selected by `user_workflow: mcp_agent`.",
        idle={SERVE: OWN_AGENTS},
        when=("rollout.user_workflow", "mcp_agent"),
        or_own=True,
    )
