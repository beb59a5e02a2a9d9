"""Reply format: what a request asks of the form of its reply, and whether a reply keeps to it.

Invariant: a reply that breaks a demand is shown to no client. There are two demands, the same in every dialect: JSON of
a schema (`response_format`), and arguments that a strict tool's schema admits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ajet.gateway.turn import TurnRequest
from ajet.schema.call import FinishReason
from ajet.schema.json_schema import problem_of_reply


class Broken(NamedTuple):
    """A demand that a reply does not keep to."""

    why: str
    demand: str
    """In words, after "None of the replies …"."""
    param: str
    """The turn's field that demands it."""


def demands(request: TurnRequest, *, constrained: bool) -> bool:
    """Whether the reply must be looked at before its client sees it. `constrained`: the engine holds it to its JSON
    schema."""
    return (request.json_schema is not None and not constrained) or any(_strict(request))


def broken_by(request: TurnRequest, message: Mapping[str, Any], finish: FinishReason) -> Broken | None:
    """The first demand that the reply does not keep to. A call is no JSON answer yet; a cut text says so itself."""
    calls = message.get("tool_calls") or ()
    for tool in _strict(request):
        for called in (call["function"] for call in calls if call["function"]["name"] == tool["name"]):
            problem = problem_of_reply(called["arguments"], tool.get("parameters") or {})
            if problem is not None:
                name = tool["name"]
                return Broken(f"arguments of {name!r}: {problem}", f"called {name!r} as its schema says", "tools")
    if request.json_schema is None or calls or finish == "length":
        return None
    problem = problem_of_reply(message["content"] or "", request.json_schema)
    return None if problem is None else Broken(problem, "was JSON that the schema admits", "response_format")


def _strict(request: TurnRequest) -> Iterator[Mapping[str, Any]]:
    """The functions whose calls are held to their schemas."""
    if request.tools and request.tool_choice != "none":
        for tool in request.tools:
            if tool["function"].get("strict"):
                yield tool["function"]
