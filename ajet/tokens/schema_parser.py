"""SchemaParser: the replies of models whose tokenizer has a `response_schema`, parsed by transformers.

Invariant: transformers parses complete replies only. A stream of such a model therefore arrives in one piece at its
end. A reply that does not fit the schema is content, character for character.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ajet.tokens.parsing import Delta
from ajet.tokens.tool_calls import Tools, checked


class SchemaParser:
    """Parses a reply by the tokenizer's `response_schema`. With `tools` as `None`, no text is a tool call."""

    def __init__(self, parse: Callable[[str], Any], *, tools: Tools | None = None) -> None:
        self._parse, self._has_tools = parse, tools is not None
        self._text = ""

    @property
    def raw(self) -> str:
        """The complete text: reasoning is not separated from the rest."""
        return self._text

    def feed(self, text: str) -> list[Delta]:
        """Add text of the reply."""
        self._text += text
        return []

    def close(self) -> list[Delta]:
        """Return the message, once the reply has ended."""
        try:
            message = self._parse(self._text)
        except (ValueError, TypeError, KeyError):
            message = None
        if not isinstance(message, dict):
            return [{"content": self._text}] if self._text else []
        functions = [checked(call.get("function", call), ("arguments",)) for call in message.get("tool_calls") or ()]
        if functions and (not self._has_tools or None in functions):
            return [{"content": self._text}]
        deltas: list[Delta] = []
        thought = message.get("reasoning_content") or message.get("thinking")
        if thought:
            deltas.append({"reasoning_content": thought})
        if message.get("content"):
            deltas.append({"content": message["content"]})
        for index, function in enumerate(functions):
            deltas.append({"tool_calls": [{"index": index, "type": "function", "function": function}]})
        return deltas
