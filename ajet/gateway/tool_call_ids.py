"""Ids of tool calls: made by the gateway, since models sample none.

Invariant: an id is unique in its session and the same in the streamed deltas as in the whole message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def call_ids(index: int) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Gives the tool calls in deltas of call `index` their ids."""

    def give(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {"tool_calls": [{"id": f"call_{index}_{call['index']}", **call} for call in delta["tool_calls"]]}
            if "tool_calls" in delta
            else delta
            for delta in deltas
        ]

    return give


def with_ids(message: dict[str, Any], index: int) -> dict[str, Any]:
    """The message with ids for its tool calls, unique in the session."""
    for at, call in enumerate(message.get("tool_calls") or ()):
        call["id"] = f"call_{index}_{at}"
    return message
