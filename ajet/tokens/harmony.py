"""HarmonyParser: the replies of gpt-oss, whose turns consist of several messages on channels.

Invariant: as in `parsing`, the deltas add up to the same message however the text is cut. A message on `analysis` is
reasoning, `commentary` to functions.NAME is a tool call, any other is content. A message without a header, or with an
invalid call, is content character for character.
"""

from __future__ import annotations

import re
from typing import Any

from ajet.tokens.call_end import JsonEndFinder, overlap
from ajet.tokens.tool_calls import Function, Tools, harmony_call

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_AGAIN = f"{START}assistant"
_HEADS = (CHANNEL, MESSAGE, "to=", "<|constrain|>")
_ENDS = re.compile(f"{re.escape(END)}|{re.escape(START)}")
_ON = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_TO = re.compile(r"\bto=functions\.([^\s<]+)")


class HarmonyParser:
    """Parses the channels of one reply. With `tools` as `None`, no message is a tool call."""

    def __init__(self, *, tools: Tools | None) -> None:
        self._tools = tools
        self._held = ""
        self._raw: list[str] = []
        self._kind = ""
        """Kind of the current message: reasoning_content, content or call; "" between messages."""
        self._segment = ""
        """Text of the current message, header included."""
        self._name = ""
        self._body = ""
        self._end = JsonEndFinder(END, START)
        """Finds the end of the current call; the next message ends a call even within a JSON text."""
        self._searched = 0
        """Number of searched characters of `_held` without the beginning of a next message."""
        self._begun_kinds: set[str] = set()
        self._calls = 0

    @property
    def raw(self) -> str:
        """The text behind the reasoning, as sampled."""
        return "".join(self._raw)

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Parse more text. Return the deltas that further text cannot change."""
        self._held += text
        return self._parse_held(end=False)

    def close(self) -> list[dict[str, Any]]:
        """End the reply. Return the deltas held back so far."""
        deltas = self._parse_held(end=True)
        return deltas + (self._end_message() if self._kind else [])

    def _parse_held(self, *, end: bool) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        while (more := self._parse_body(end) if self._kind else self._parse_header(end)) is not None:
            deltas += more
        return deltas

    def _parse_header(self, end: bool) -> list[dict[str, Any]] | None:
        if not self._held:
            return None
        header, closed, _ = self._held.partition(MESSAGE)
        headed = _may_begin_header(header + closed)
        if headed and not closed and not end:
            return None
        if not headed or not closed:
            self._begin_message("content", "")
            return self._add_text(self._consume_text(len(START))) if self._held.startswith(START) else []
        on = _ON.search(header)
        to = _TO.search(header)
        kind = "reasoning_content" if on is not None and on[1] == "analysis" and to is None else "content"
        self._begin_message("call" if to is not None else kind, self._consume_text(len(header) + len(MESSAGE)))
        self._name = to[1] if to is not None else ""
        return self._build_delta("\n") if self._kind in self._begun_kinds else []

    def _parse_body(self, end: bool) -> list[dict[str, Any]] | None:
        stop = self._find_message_end()
        ready = len(self._held) if stop is None else stop
        if stop is None and not end:
            if self._kind == "call":
                return None
            ready -= max(overlap(self._held, END), overlap(self._held, START))
        deltas = self._add_text(self._consume_text(ready)) if ready else []
        if stop is not None:
            if self._held.startswith(END):
                self._segment += self._consume_text(len(END))
            return deltas + self._end_message()
        return deltas or None

    def _find_message_end(self) -> int | None:
        """Return the end of the current message in `_held`; `None` if the end is missing."""
        if self._kind != "call":
            match = _ENDS.search(self._held)
            return None if match is None else match.start()
        ends = [self._end.find(self._held), self._held.find(END + _AGAIN, self._searched)]
        self._searched = max(0, len(self._held) - len(END + _AGAIN) + 1)
        return min((index for index in ends if index >= 0), default=None)

    def _begin_message(self, kind: str, header: str) -> None:
        self._kind, self._segment, self._body = kind, header, ""
        self._end, self._searched = JsonEndFinder(END, START), 0

    def _add_text(self, text: str) -> list[dict[str, Any]]:
        self._segment += text
        if self._kind == "call":
            self._body += text
            return []
        return self._build_delta(text)

    def _build_delta(self, text: str) -> list[dict[str, Any]]:
        self._begun_kinds.add(self._kind)
        return [{self._kind: text}] if text else []

    def _end_message(self) -> list[dict[str, Any]]:
        kind, self._kind = self._kind, ""
        if kind == "reasoning_content":
            self._raw.clear()
        if kind != "call":
            return []
        function = self._parse_function()
        if function is None:
            self._begun_kinds.add("content")
            return [{"content": self._segment}]
        self._calls += 1
        return [{"tool_calls": [{"index": self._calls - 1, "type": "function", "function": function}]}]

    def _parse_function(self) -> Function | None:
        return None if self._tools is None else harmony_call(self._name, self._body.strip())

    def _consume_text(self, count: int) -> str:
        consumed, self._held = self._held[:count], self._held[count:]
        self._raw.append(consumed)
        return consumed


def _may_begin_header(text: str) -> bool:
    """Return True if `text` may be the beginning of a message's header."""
    if _AGAIN.startswith(text):
        return True
    rest = text.removeprefix(_AGAIN).lstrip(" ")
    begins = any(head.startswith(rest) or rest.startswith(head) for head in _HEADS)
    return begins and END not in rest and START not in rest
