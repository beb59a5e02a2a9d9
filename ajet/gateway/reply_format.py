"""The demanded form of a reply, and the check of a reply against it.

Invariant: a reply that violates a demand is shown to no client. All dialects have the same two demands: JSON of a
schema (`response_format`), and arguments admitted by a strict tool's schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ajet.gateway.request import ParsedRequest
from ajet.schema.call import FinishReason
from ajet.schema.json_schema import find_reply_problem


class FormatViolation(NamedTuple):
    """A demand violated by a reply."""

    why: str
    demand: str
    """The demand in words, after "None of the replies …"."""
    param: str
    """The field of the request with the demand."""


def needs_check(request: ParsedRequest, *, is_constrained: bool) -> bool:
    """Return True if the reply must be checked before the client sees it.

    Args:
        is_constrained: The engine holds the reply to its JSON schema.
    """
    return (request.json_schema is not None and not is_constrained) or any(_list_strict_functions(request))


def find_violation(request: ParsedRequest, message: Mapping[str, Any], finish: FinishReason) -> FormatViolation | None:
    """Return the first demand violated by a reply, or `None`.

    The arguments of strict tools are always checked. The `response_format` schema is checked only for a complete reply
    without tool calls.
    """
    calls = message.get("tool_calls") or ()
    for tool in _list_strict_functions(request):
        for called in (call["function"] for call in calls if call["function"]["name"] == tool["name"]):
            problem = find_reply_problem(called["arguments"], tool.get("parameters") or {})
            if problem is not None:
                name = tool["name"]
                return FormatViolation(
                    why=f"the arguments of the tool {name!r}: {problem}",
                    demand=f"called the tool {name!r} with arguments that match its schema",
                    param="tools",
                )
    if request.json_schema is None or calls or finish == "length":
        return None
    problem = find_reply_problem(message["content"] or "", request.json_schema)
    if problem is None:
        return None
    return FormatViolation(why=problem, demand="matched the JSON schema of response_format", param="response_format")


def _list_strict_functions(request: ParsedRequest) -> Iterator[Mapping[str, Any]]:
    """Yield the functions with strict schemas."""
    if request.tools and request.tool_choice != "none":
        for tool in request.tools:
            if tool["function"].get("strict"):
                yield tool["function"]
