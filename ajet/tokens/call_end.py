"""Finders of the end of a tool call in a reply's text.

Invariant: an end tag within a text argument does not end the call, and a text is searched once, however it is cut.
Formats with quoted arguments (JSON) have an exact end (`JsonEndFinder`). Arguments without quotes (Qwen's XML, GLM)
cannot escape their own tags. `ArgumentScanner` therefore follows three rules:

- A value on lines of its own ends at an end tag with the format's next tag on a later line. Other tags are text.
- A complete argument within a value (a quoted example of a call) is text.
- A value that contains the complete end of a call, line by line, ends the call there.

A call without the end of an argument therefore never ends, instead of adding the next argument to the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import regex

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TEXT = re.compile(r'(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*')
"""The rest of a JSON string. A raw control character ends it: the text is not JSON then, and tags in it count."""
_TAGS = re.compile(f"{OPEN}|{CLOSE}")


class CallEndFinder(Protocol):
    """Finds the end tag of one call in a growing text."""

    def find(self, text: str) -> int:
        """Return the index of the end tag in `text`, which begins with `OPEN`, or -1 if the tag is still missing."""
        ...


class JsonEndFinder:
    """Finds the first of several tags outside of JSON strings."""

    def __init__(self, *tags: str, start: int = 0) -> None:
        self._tag_pattern = re.compile("|".join(map(re.escape, tags)))
        self._token_pattern = re.compile(f'"|{self._tag_pattern.pattern}')
        self._longest_tag = max(map(len, tags))
        self._parsed_end = start
        self._text_start: int | None = None
        """Start of the JSON string around `_parsed_end`; `None` outside of strings."""

    def find(self, text: str) -> int:
        """Return the index of the first tag outside of JSON strings, or -1 if it is still missing."""
        while True:
            if self._text_start is None:
                match = self._token_pattern.search(text, self._parsed_end)
                if match is None:  # the text may end with the beginning of a tag
                    self._parsed_end = max(self._parsed_end, len(text) - self._longest_tag + 1)
                    return -1
                if match[0] != '"':
                    return match.start()
                self._parsed_end = self._text_start = match.end()
            parsed = _TEXT.match(text, self._parsed_end)
            self._parsed_end = parsed.end() if parsed is not None else self._parsed_end
            if self._parsed_end >= len(text) - text.endswith("\\"):  # the string goes on in the text to come
                return -1
            # The string ends at a quote. A raw control character, such as a newline, also ends it: JSON does not allow
            # one in a string, so the reply is not JSON, and a tag since the opening quote counts.
            if text[self._parsed_end] != '"' and (
                tag := self._tag_pattern.search(text, self._text_start, self._parsed_end)
            ):
                return tag.start()
            self._parsed_end += 1
            self._text_start = None


class MatchingEndFinder:
    """Finds the end tag that closes the first `OPEN`; quoted calls within have end tags of their own."""

    def __init__(self) -> None:
        self._searched_end = 0
        self._depth = 0

    def find(self, text: str) -> int:
        """Return the index of the end tag that closes the first `OPEN`, or -1 if it is still missing."""
        while (match := _TAGS.search(text, self._searched_end)) is not None:
            self._searched_end = match.end()
            self._depth += 1 if match[0] == OPEN else -1
            if self._depth == 0:
                return match.start()
        self._searched_end = max(self._searched_end, len(text) - len(CLOSE) + 1)
        return -1


def overlap(text: str, tag: str) -> int:
    """Return the number of characters at the end of `text` that may begin `tag`."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0


_NEWLINE = r"[^\S\n]{0,99}+\n\s{0,99}+"
_BLANKS = r"\s{0,99}+"


@dataclass(frozen=True)
class BareSyntax:
    """The tags of a format around an argument, as regular expressions."""

    opening: str
    """The text before the value. Group 1 is the name, group 2 has a newline for a value on its own line."""
    line_start: str
    """Pattern of the text before an opening tag that begins a line."""
    ending: str
    following: str
    """The text that may follow the end of an argument."""

    @cached_property
    def outside(self) -> regex.Pattern[str]:
        """The next tag between arguments."""
        return regex.compile(f"(?P<open>{self.opening})|(?P<close>{CLOSE})")

    @cached_property
    def inside(self) -> dict[tuple[bool, bool], regex.Pattern[str]]:
        """Patterns that match the next tag inside a value: the opening of a quoted argument, or the value's end.

        The key is (the value is on its own line, the value is quoted within another value). The argument's end must be
        followed by what the format allows there, since a value may contain the end tag as text. A quoted argument is
        text itself, so anything may follow its end; a value on its own line still ends at a line's start or end.
        """
        opened, own_line = f"(?P<open>{self.opening})", f"(?P<open>{self.line_start}{self.opening})"
        ends_line = f"{self.ending}(?={_NEWLINE}(?:{self.following}))"
        return {
            (True, False): regex.compile(f"{own_line}|{ends_line}"),
            (True, True): regex.compile(rf"{own_line}|{ends_line}|(?<=\n){self.ending}"),
            (False, False): regex.compile(f"{opened}|{self.ending}(?={_BLANKS}(?:{self.following}))"),
            (False, True): regex.compile(f"{opened}|{self.ending}"),
        }


XML = BareSyntax(
    opening=r"<parameter=([^<>\n]{1,256}+)>(\n|(?=[^\n]))",
    line_start=r"(?<=\n)",
    ending="</parameter>",
    following=f"<parameter=|</function>{_BLANKS}{CLOSE}",
)
GLM = BareSyntax(
    opening=rf"<arg_key>([^<>\n]{{1,256}}+)</arg_key>({_BLANKS})<arg_value>",
    line_start=r"(?<=\n)",
    ending="</arg_value>",
    following=f"<arg_key>|{CLOSE}",
)


class ArgumentScanner:
    """Finds the arguments and the end of one call in a growing text that begins with `OPEN`, in one pass."""

    def __init__(self, syntax: BareSyntax) -> None:
        self._syntax = syntax
        self._searched_end = len(OPEN)
        self._open_arguments: list[bool] = []
        """For the current argument and arguments quoted in its value: True if the value is on its own line."""
        self._outer_end = len(OPEN)
        self._value_start = 0
        self.pairs: list[tuple[str, str]] = []
        self.between: list[str] = []
        """The texts around the arguments, one more than `pairs` after the end of the call."""

    def find(self, text: str) -> int:
        """Return the index of the call's end tag, or -1 if it is still missing."""
        while True:
            match = self._choose_pattern().search(text, self._searched_end, partial=True)
            if match is None or match.partial:
                self._searched_end = len(text) if match is None else match.start()
                return -1
            groups = match.groupdict()
            if groups.get("close") is not None:
                self.between.append(text[self._outer_end : match.start()])
                return match.start()
            self._searched_end = match.end()
            if groups["open"] is not None:
                self._begin_argument(text, match)
            else:
                self._end_argument(text, match)

    def _choose_pattern(self) -> regex.Pattern[str]:
        """Return the pattern of the next tag: between arguments, or inside the value of the innermost open argument."""
        if not self._open_arguments:
            return self._syntax.outside
        return self._syntax.inside[self._open_arguments[-1], len(self._open_arguments) > 1]

    def _begin_argument(self, text: str, match: regex.Match[str]) -> None:
        """Note that an argument begins. One quoted within another's value has no entry of its own in `pairs`."""
        if not self._open_arguments:
            self.between.append(text[self._outer_end : match.start()])
            self._value_start, self._name = match.end(), match[2]
        self._open_arguments.append("\n" in match[3])

    def _end_argument(self, text: str, match: regex.Match[str]) -> None:
        """Note that the innermost argument ends. The outermost one becomes a (name, value) in `pairs`."""
        self._open_arguments.pop()
        if not self._open_arguments:
            self.pairs.append((self._name, text[self._value_start : match.start()]))
            self._outer_end = match.end()
