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

START = "<|start|>"
CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
END = "<|end|>"
_AGAIN = f"{START}assistant"
_HEADS = (CHANNEL, MESSAGE, "to=", "<|constrain|>")
_ENDS = re.compile(f"{re.escape(END)}|{re.escape(START)}")
_ON = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_TO = re.compile(r"\bto=functions\.([^\s<]+)")


class HarmonyParser:
    """Parses the channels of one reply. With `tools` as `None`, no message is a tool call."""

    def __init__(self, *, tools: Tools | None) -> None:
        self._tools = tools
        self._unparsed = ""
        self._consumed_parts: list[str] = []
        self._kind = ""
        """Kind of the current message: reasoning_content, content or call; "" between messages."""
        self._segment = ""
        """Text of the current message, header included."""
        self._name = ""
        self._body = ""
        self._call_end = JsonEndFinder(END, START)
        """Finds the end of the current call; the next message ends a call even within a JSON text."""
        self._searched_chars = 0
        """Number of searched characters of `_unparsed` without the beginning of a next message."""
        self._begun_kinds: set[str] = set()
        self._calls = 0

    @property
    def raw(self) -> str:
        """The reply's text after its reasoning, exactly as sampled."""
        return "".join(self._consumed_parts)

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Parse more text. Return the deltas that further text cannot change."""
        self._unparsed += text
        return self._parse_held(is_end=False)

    def close(self) -> list[dict[str, Any]]:
        """End the reply. Return the deltas held back so far."""
        deltas = self._parse_held(is_end=True)
        return deltas + (self._end_message() if self._kind else [])

    def _parse_held(self, *, is_end: bool) -> list[dict[str, Any]]:
        """Parse the unparsed text as far as possible, and return its deltas."""
        deltas: list[dict[str, Any]] = []
        while (new_deltas := self._parse_body(is_end) if self._kind else self._parse_header(is_end)) is not None:
            deltas += new_deltas
        return deltas

    def _parse_header(self, is_end: bool) -> list[dict[str, Any]] | None:
        """Parse a message header of the Harmony format. Returns None if more text is needed.

        The header decides whether the body is reasoning (channel `analysis`), content, or a tool call (`to=NAME`).
        """
        if not self._unparsed:
            return None
        header, separator, _ = self._unparsed.partition(MESSAGE)
        may_be_header = _may_begin_header(header + separator)
        if may_be_header and not separator and not is_end:
            return None
        if not may_be_header or not separator:  # text without a header is content
            self._begin_message("content", "")
            return self._add_text(self._consume_text(len(START))) if self._unparsed.startswith(START) else []
        channel_match = _ON.search(header)
        recipient_match = _TO.search(header)
        kind = (
            "reasoning_content"
            if channel_match is not None and channel_match[1] == "analysis" and recipient_match is None
            else "content"
        )
        self._begin_message(
            "call" if recipient_match is not None else kind, self._consume_text(len(header) + len(MESSAGE))
        )
        self._name = recipient_match[1] if recipient_match is not None else ""
        # A newline separates two messages of the same kind.
        return self._build_delta("\n") if self._kind in self._begun_kinds else []

    def _parse_body(self, is_end: bool) -> list[dict[str, Any]] | None:
        """Return the deltas of a message's body up to its end tag. A tool call is returned only once it is complete."""
        stop = self._find_message_end()
        ready = len(self._unparsed) if stop is None else stop
        if stop is None and not is_end:
            if self._kind == "call":
                return None
            ready -= max(overlap(self._unparsed, END), overlap(self._unparsed, START))
        deltas = self._add_text(self._consume_text(ready)) if ready else []
        if stop is not None:
            if self._unparsed.startswith(END):
                self._segment += self._consume_text(len(END))
            return deltas + self._end_message()
        return deltas or None

    def _find_message_end(self) -> int | None:
        """Return the end of the current message in `_unparsed`, or None if the end is missing."""
        if self._kind != "call":
            match = _ENDS.search(self._unparsed)
            return None if match is None else match.start()
        ends = [self._call_end.find(self._unparsed), self._unparsed.find(END + _AGAIN, self._searched_chars)]
        self._searched_chars = max(0, len(self._unparsed) - len(END + _AGAIN) + 1)
        return min((index for index in ends if index >= 0), default=None)

    def _begin_message(self, kind: str, header: str) -> None:
        """Begin a message of a kind (reasoning_content, content or call) whose header was consumed."""
        self._kind = kind
        self._segment = header
        self._body = ""
        self._call_end, self._searched_chars = JsonEndFinder(END, START), 0

    def _add_text(self, text: str) -> list[dict[str, Any]]:
        """Add text to the message, and return its deltas: none for a call, which is returned complete at its end."""
        self._segment += text
        if self._kind == "call":
            self._body += text
            return []
        return self._build_delta(text)

    def _build_delta(self, text: str) -> list[dict[str, Any]]:
        """Return the text as a delta of the current message's kind, and remember that a delta of this kind was sent."""
        self._begun_kinds.add(self._kind)
        return [{self._kind: text}] if text else []

    def _end_message(self) -> list[dict[str, Any]]:
        """End the message, and return its tool call if it is one. An invalid call is returned as content, header
        included.
        """
        kind, self._kind = self._kind, ""
        if kind == "reasoning_content":
            self._consumed_parts.clear()
        if kind != "call":
            return []
        function = self._parse_function()
        if function is None:
            self._begun_kinds.add("content")
            return [{"content": self._segment}]
        self._calls += 1
        return [{"tool_calls": [{"index": self._calls - 1, "type": "function", "function": function}]}]

    def _parse_function(self) -> Function | None:
        """Return the call of the current message, or None for an invalid call or without tools."""
        return None if self._tools is None else harmony_call(self._name, self._body.strip())

    def _consume_text(self, count: int) -> str:
        """Remove the next characters from the unparsed text and return them. They become part of `raw`."""
        consumed, self._unparsed = self._unparsed[:count], self._unparsed[count:]
        self._consumed_parts.append(consumed)
        return consumed


def _may_begin_header(text: str) -> bool:
    """Return True if `text` may be the beginning of a message's header."""
    if _AGAIN.startswith(text):
        return True
    header_text = text.removeprefix(_AGAIN).lstrip(" ")
    begins = any(head.startswith(header_text) or header_text.startswith(head) for head in _HEADS)
    return begins and END not in header_text and START not in header_text
