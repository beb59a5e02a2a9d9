"""Wrong tool calls: the model meant to call a tool and wrote what is no call.

Rules: `arguments`: a call's arguments are no JSON object; `name`: a call names no function; `leftover`: the markup of
a call stands in the text, so that it could not be read as one.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ajet.rollout.checks.text import texts_of

_MARKUP = re.compile(r"</?tool_call>|<function=|</?function_call>|<\|python_tag\|>|\[TOOL_CALLS\]")


def wrong_toolcall(message: dict[str, Any]) -> list[str]:
    """The rules that an assistant message breaks."""
    rules = []
    calls = [call.get("function") or {} for call in message.get("tool_calls") or []]
    if any(not _is_object(call.get("arguments")) for call in calls):
        rules.append("arguments")
    if any(not (isinstance(call.get("name"), str) and call["name"].strip()) for call in calls):
        rules.append("name")
    content = {"content": message.get("content")}
    if any(_MARKUP.search(text) for text in texts_of(content)):
        rules.append("leftover")
    return rules


def _is_object(arguments: Any) -> bool:
    if isinstance(arguments, dict):
        return True
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError, RecursionError):
        return False
