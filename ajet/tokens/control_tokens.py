"""Control tokens: those that a chat template builds turns from, and content that merely spells them.

Invariant: content that spells a control token is encoded as the plain text that it is, so that what a tool answers
cannot end its turn or begin another; its decoded text is unchanged. A text without one is left as it is, character
for character. `CUT` marks the place for the encoder (`Renderer.encode`), which encodes what lies before and after it
apart; no template writes it, and no token holds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

Escaped = Literal["tool_results", "all", "none"]
"""Whose content is: tools'; that of everyone but the model, tool descriptions included; nobody's."""
CUT = "\ufdd0\ufdd1\ufdd0"
"""Three characters that Unicode keeps for internal use and that no text has."""
_SENT = frozenset({"user", "system", "developer"})


def uncut(text: str) -> str:
    """A text without the encoder's marks: what its ids say."""
    return text.replace(CUT, "")


class ControlTokens:
    """The control tokens of one tokenizer and its chat template's `source`: the special tokens, and added ones that the
    template writes (`<tool_response>`). Other added tokens are words of the vocabulary."""

    def __init__(self, tokenizer: Any, source: str, escaped: Escaped) -> None:
        self._escaped = escaped
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        spelled = {str(token.content) for token in added if token.special or token.content in source}
        spelled |= {str(token) for token in tokenizer.all_special_tokens}
        listed = sorted((text for text in spelled if len(text) > 1), key=len, reverse=True)
        self._spelled = _starts(listed)
        self._any = bool(listed) and escaped != "none"

    def escape(self, text: str, role: str) -> str:
        """The content of a message of this role, each control token in it cut in two where the role is escaped."""
        wanted = role in ("tool", "function") or (self._escaped == "all" and role in _SENT)
        return self._cut(text) if wanted else text

    def escape_tools(self, tools: Any) -> Any:
        """Tool descriptions, likewise."""
        return self._deep(tools) if self._escaped == "all" and self._any else tools

    def _cut(self, text: str) -> str:
        return self._spelled.sub(lambda found: found[0] + CUT, text) if self._any else text

    def _deep(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._cut(value)
        if isinstance(value, Mapping):
            return {self._deep(name): self._deep(item) for name, item in value.items()}
        return [self._deep(item) for item in value] if isinstance(value, list | tuple) else value


def _starts(spelled: list[str]) -> re.Pattern[str]:
    """Finds the first character of each, those that overlap included."""
    heads = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in spelled)
    return re.compile(heads)
