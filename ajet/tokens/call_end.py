"""Where a tool call ends in a reply's text.

Invariant: an end tag within a text argument does not end the call. Formats that quote arguments (JSON) say so exactly;
`bare_arguments` is for those that do not. A text is searched once, however it is cut.
"""

from __future__ import annotations

import re
from typing import Protocol

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TEXT = re.compile(r'(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*')
"""What a JSON text may go on with. A raw control character ends it: that is no JSON, and the tags in it count."""
_TAGS = re.compile(f"{OPEN}|{CLOSE}")


class CallEndFinder(Protocol):
    """Finds the end tag of one call, whose text grows."""

    def find(self, text: str) -> int:
        """Return the index of the end tag in `text`, which begins with `OPEN`; -1 if it has not come yet."""
        ...


class JsonEndFinder:
    """Finds the first of some tags that is not within a JSON text."""

    def __init__(self, *tags: str, start: int = 0) -> None:
        self._tags = re.compile("|".join(map(re.escape, tags)))
        self._parts = re.compile(f'"|{self._tags.pattern}')
        self._longest = max(map(len, tags))
        self._parsed = start
        self._text_start: int | None = None
        """Where the JSON text begins that `_parsed` is in."""

    def find(self, text: str) -> int:
        """Return the index of the tag; -1 if it has not come yet."""
        while True:
            if self._text_start is None:
                found = self._parts.search(text, self._parsed)
                if found is None:
                    self._parsed = max(self._parsed, len(text) - self._longest + 1)
                    return -1
                if found[0] != '"':
                    return found.start()
                self._parsed = self._text_start = found.end()
            parsed = _TEXT.match(text, self._parsed)
            self._parsed = parsed.end() if parsed is not None else self._parsed
            if self._parsed >= len(text) - text.endswith("\\"):
                return -1
            if text[self._parsed] != '"' and (tag := self._tags.search(text, self._text_start, self._parsed)):
                return tag.start()
            self._parsed += 1
            self._text_start = None


class MatchingEndFinder:
    """The end tag that closes the first `OPEN`: calls that are quoted before it have their own."""

    def __init__(self) -> None:
        self._searched = 0
        self._depth = 0

    def find(self, text: str) -> int:
        while (found := _TAGS.search(text, self._searched)) is not None:
            self._searched = found.end()
            self._depth += 1 if found[0] == OPEN else -1
            if self._depth == 0:
                return found.start()
        self._searched = max(self._searched, len(text) - len(CLOSE) + 1)
        return -1
