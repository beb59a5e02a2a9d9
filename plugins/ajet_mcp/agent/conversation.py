"""An attempt's conversation, and how it is shortened when the context would overflow.

Invariant: system prompt and task always stay; what is left out is named to the model in one message; nothing is changed
in the middle of a message. Each change is one entry of `changes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ajet.schema.messages import extract_text
from ajet_mcp.results import CountTokens

Overflow = Literal["disabled", "discard_all_tools", "discard_all", "summarize"]
FRAME = 16
"""Tokens of a message around its text, at most."""
SUMMARIZE = (
    "The context is nearly full. Write down, in short, all that you have found out and what is still to be done."
)
_NOTES = {
    "discard_all_tools": "[The context was full. Your earlier tool calls and their results are left out.]",
    "discard_all": "[The context was full. All that you did before is left out; begin again.]",
    "summarize": "[The context was full. This is your own summary of what you did before:]\n{}",
}
_LEFT_OUT = "[left out: the context is full]"


class Conversation:
    """Messages as the next request will hold them."""

    def __init__(self, opening: Sequence[Mapping[str, Any]], room: int, reply_room: int) -> None:
        """`room`: tokens of prompt and reply; `reply_room`: what of it is kept for a reply."""
        self.messages: list[dict[str, Any]] = [dict(each) for each in opening]
        self.changes: list[dict[str, Any]] = []
        self._opening, self._room, self._reply_room = len(self.messages), room, reply_room
        self._known = 0
        """Tokens of the messages before `_new`, by the last reply's usage."""
        self._new = 0

    def replied(self, message: Mapping[str, Any], tokens: int) -> None:
        """The model's reply; `tokens` of prompt and reply together."""
        self.messages.append(dict(message))
        self._known, self._new = tokens, len(self.messages)

    def add(self, message: Mapping[str, Any]) -> None:
        """Any other."""
        self.messages.append(dict(message))

    @property
    def is_at_its_shortest(self) -> bool:
        """Whether no message is left that could be dropped."""
        return len(self.messages) <= self._opening + 1

    async def would_overflow(self, count: CountTokens) -> bool:
        """Whether the next request leaves too little room for a reply."""
        if not self._known:
            return False
        added = self.messages[self._new :]
        texts = [extract_text(each) for each in added]
        free = self._room - self._reply_room - self._known - FRAME * len(added)
        if sum(len(text.encode("utf-8", "replace")) for text in texts) <= free:  # no token is less than a byte
            return False
        return sum([await count(text) for text in texts]) > free

    def for_summary(self) -> list[dict[str, Any]]:
        """The request that asks the model for one: what fits by what is known, and the question."""
        shortened = [{**each, "content": _LEFT_OUT} if each.get("role") == "tool" else each
                     for each in self.messages[self._new :]]  # fmt: skip
        return [*self.messages[: self._new], *shortened, {"role": "user", "content": SUMMARIZE}]

    def shorten(self, how: Overflow, step: int, summary: str = "") -> None:
        """Leave out what `how` says."""
        before = len(self.messages)
        remaining = self.messages[: self._opening]
        if how == "discard_all_tools":
            remaining += [{"role": "assistant", "content": each["content"]} for each in self.messages[self._opening :]
                     if each.get("role") == "assistant" and each.get("content")]  # fmt: skip
        self.messages = [*remaining, {"role": "user", "content": _NOTES[how].format(summary)}]
        self._known = self._new = 0
        self.changes.append({"how": how, "step": step, "messages": before, "left": len(self.messages)})
