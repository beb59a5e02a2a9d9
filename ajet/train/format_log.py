"""What the `context_tracker` log switches ask for: cut timelines and malformed tool calls, said while a run goes on.

Invariant: it only says; the same cuts and rules are in the episodes' record whether or not a switch is on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from loguru import logger

from ajet.context_tracker import snaps
from ajet.rollout.checks import wrong_toolcall
from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.config.schema.data import ContextTracker


def log_formats(episodes: Iterable[Episode], settings: ContextTracker) -> None:
    """Warn of each cut (`detect_timeline_snap`) and each tool call of a wrong form (`log_tool_format_check`)."""
    for episode in episodes:
        name = f"task {episode.task.task_id}, attempt {episode.repeat}"
        if settings.detect_timeline_snap:
            for snap in snaps(episode.calls):
                logger.warning("{}: {}", name, snap)
        if settings.log_tool_format_check:
            for call in episode.calls:
                reply = episode.messages[call.reply] if call.reply is not None else {}
                rules = wrong_toolcall(reply)
                if rules:
                    detail = f": {reply}" if settings.log_tool_format_error_detail else ""
                    logger.warning("{}: the tool call in call {} is wrong ({}){}", name, call.index, rules, detail)
