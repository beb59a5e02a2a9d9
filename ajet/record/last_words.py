"""What a model said last, for tables of episodes."""

from __future__ import annotations

from typing import Any

from ajet.record.image_text import text_of


def last_words(messages: list[Any]) -> str:
    """The text of the last reply; the calls of tools where it said none."""
    said = [each for each in messages if isinstance(each, dict) and each.get("role") == "assistant"]
    if not said:
        return ""
    calls = [call.get("function") or {} for call in said[-1].get("tool_calls") or () if isinstance(call, dict)]
    told = [f"{call.get('name')}({call.get('arguments')})" for call in calls]
    return text_of(said[-1].get("content")).strip() or " ".join(told)
