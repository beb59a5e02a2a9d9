"""The form that a request demands of its reply, and whether a reply has it.

Invariant: a reply that violates a demand is shown to no client. There are two demands, the same in every dialect: JSON
of a schema (`response_format`), and arguments that a strict tool's schema admits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ajet.gateway.request import ParsedRequest
from ajet.schema.call import FinishReason
from ajet.schema.json_schema import find_reply_problem


class FormatViolation(NamedTuple):
    """A demand that a reply does not satisfy."""

    why: str
    demand: str
    """In words, after "None of the replies …"."""
    param: str
    """The field of the request that demands it."""


def needs_check(request: ParsedRequest, *, is_constrained: bool) -> bool:
    """Return True if the reply must be checked before its client sees it.

    Args:
        is_constrained: The engine holds the reply to its JSON schema.
    """
    return (request.json_schema is not None and not is_constrained) or any(_list_strict_functions(request))


def find_violation(request: ParsedRequest, message: Mapping[str, Any], finish: FinishReason) -> FormatViolation | None:
    """Return the first demand that a reply does not satisfy. A tool call is no JSON answer yet, and a reply that was
    cut says so itself."""
    calls = message.get("tool_calls") or ()
    for tool in _list_strict_functions(request):
        for called in (call["function"] for call in calls if call["function"]["name"] == tool["name"]):
            problem = find_reply_problem(called["arguments"], tool.get("parameters") or {})
            if problem is not None:
                name = tool["name"]
                return FormatViolation(
                    f"arguments of {name!r}: {problem}", f"called {name!r} as its schema says", "tools"
                )
    if request.json_schema is None or calls or finish == "length":
        return None
    problem = find_reply_problem(message["content"] or "", request.json_schema)
    return None if problem is None else FormatViolation(problem, "was JSON that the schema admits", "response_format")


def _list_strict_functions(request: ParsedRequest) -> Iterator[Mapping[str, Any]]:
    """Yield the functions whose calls are held to their schemas."""
    if request.tools and request.tool_choice != "none":
        for tool in request.tools:
            if tool["function"].get("strict"):
                yield tool["function"]
