"""`context_tracker`: how model calls become samples to train on."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import Section, key, section


class TimelineMergingPolicy(Section):
    """When two calls belong to one timeline."""

    ignore_tools: bool = key(True, "Calls may be merged although their tool lists differ.")


class ContextTracker(Section):
    """How model calls become samples to train on."""

    timeline_merging_policy: TimelineMergingPolicy = section(
        TimelineMergingPolicy, "When two calls belong to one timeline."
    )
    keep_thinking: bool = key(
        False, "Extend a conversation verbatim where the template would strip earlier thinking, instead of forking."
    )
    escape_controls: Literal["tool_results", "all", "none"] = key(
        "tool_results",
        "Whose content is shown to the model as plain text where it spells a control token of the chat template: what "
        "tools answered; everything that the model did not say; nothing.",
    )
    log_tool_format_check: bool = key(False, "Log every reply whose tool call has the wrong form.", training=False)
    log_tool_format_error_detail: bool = key(False, "Log those replies in full.", training=False)
    detect_timeline_snap: bool = key(
        False, "Warn when a conversation breaks off and starts anew within an episode.", training=False
    )
