"""Where a tool call ends in a reply's text.

Invariant: an end tag within a text argument does not end the call. Formats that quote arguments (JSON) say so exactly.
Formats that write them bare (Qwen's XML, GLM) cannot hold their own complete end: an argument ends at its end tag with
the next tag of the format behind it, and a call at the first complete end. A text is searched once, however it is cut.
"""

from __future__ import annotations

import re
from typing import Protocol

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TEXT = r'"(?:[^"\\\x00-\x1f]|\\.)*'
"""The beginning of a JSON text. A raw control character ends it: what follows is no JSON, and tags in it count."""
_JSON_PARTS = re.compile(rf'(?P<text>{_TEXT}")|(?P<open>{_TEXT}\\?\Z)|{CLOSE}')
_JSON_TEXTS = re.compile(rf'(?P<text>{_TEXT}")|(?P<open>{_TEXT}\\?\Z)')
_NEXT_CALL = re.compile(rf"{CLOSE}\s*{OPEN}")


class CallEndFinder(Protocol):
    """Finds the end tag of one call, whose text grows."""

    def find(self, text: str) -> int:
        """Return the index of the end tag in `text`, which begins with `OPEN`; -1 if it has not come yet."""
        ...


class JsonCallEndFinder:
    """The first end tag outside of JSON texts. A text without a new end tag costs no second look."""

    def __init__(self) -> None:
        self._parsed = len(OPEN)
        """Up to here no JSON text is open."""
        self._looked = len(OPEN)
        """Up to here there is no end tag, or within a JSON text that is still open."""

    def find(self, text: str) -> int:
        if text.find(CLOSE, self._looked) < 0:
            self._looked = max(self._looked, len(text) - len(CLOSE) + 1)
            return -1
        while (found := _JSON_PARTS.search(text, self._parsed)) is not None and found["open"] is None:
            if found["text"] is None:
                return found.start()
            self._parsed = found.end()
        self._looked = text.rindex(CLOSE) + len(CLOSE)
        return -1


class BareCallEndFinder:
    """The first end tag before any argument (`opening`) or right after `ending`, which closes the last one."""

    def __init__(self, opening: str, ending: str) -> None:
        self._opening, self._ending = opening, ending
        self._searched = len(OPEN)
        self._is_argument_open = False

    def find(self, text: str) -> int:
        while (at := text.find(CLOSE, self._searched)) >= 0:
            before = text[self._searched : at]
            self._is_argument_open = self._is_argument_open or self._opening in before
            if not self._is_argument_open or before.rstrip().endswith(self._ending):
                return at
            self._searched = at + len(CLOSE)
        return -1


def is_within_json_text(text: str) -> bool:
    """True if `text`, the beginning of a JSON value, ends within a text."""
    return any(found["open"] is not None for found in _JSON_TEXTS.finditer(text))


def holds_next_call(value: str) -> bool:
    """True if a bare value runs on into another call: the call around it lacks an end."""
    return _NEXT_CALL.search(value) is not None
