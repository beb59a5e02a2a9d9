"""Personal data out of traces, by rules.

Invariant: within one conversation the same value has the same mark (`<EMAIL_1>`), so that what is said stays to be
understood; nothing that was found is anywhere in what is given on. Rules find what has a form (addresses of mail and
network, telephone and card numbers, keys) and names of a list; whoever is called by another name is not found.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.schema.secrets import without_secret_shapes
from ajet.task_reader.tracing.trace import Rating, Trace

_NO_BLANKS = r"\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Thai, Japanese, Chinese, Korean: what stands beside a word of theirs may belong to another one."""
_LETTER = rf"[^\W{_NO_BLANKS}]"
_EMAIL = re.compile(rf"(?:{_LETTER}|[.+%-]){{1,64}}@(?:(?:{_LETTER}|-){{1,63}}\.){{1,8}}{_LETTER}{{2,24}}")
_V4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_V6 = re.compile(
    rf"(?<!{_LETTER})(?<!:)(?:[A-Za-z]{{2,32}}:(?=[0-9A-Fa-f:]))?"
    rf"((?:[0-9A-Fa-f]{{0,4}}:){{2,8}}[0-9A-Fa-f]{{0,4}})(?!{_LETTER}|:)"
)
_CARD = re.compile(rf"(?<!{_LETTER})(?<![.-])\d(?:[ \u00a0-]?\d){{12,31}}(?!{_LETTER}|-|\.\d)")
_GROUPS = {(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4)}
"""How the digits of cards are written."""
_PHONE = re.compile(
    rf"(?<!{_LETTER})(?<!\.)(?:"
    r"(?:\+|00)\d{1,3}(?:[ \u00a0./-]?\(?\d{1,5}\)?){2,6}"  # international
    r"|\(?\d{3}\)?[ \u00a0.-]\d{3}[ \u00a0.-]\d{4}"  # North America
    r"|\(?0\d{1,4}\)?[ \u00a0/-]\d{2,4}(?:[ \u00a0-]?\d{2,4}){1,3}"  # with an area's number
    r"|1[3-9]\d{9}"  # mobile, China
    r"|1[3-9]\d[ \u00a0-]\d{4}[ \u00a0-]\d{4}"
    rf")(?!{_LETTER})"
)
_KEY = re.compile(
    rf"(?i)(?<!{_LETTER})(?:bearer|api[_-]?key|password|passwd|token|secret)(?!{_LETTER})"
    r"""(?:\\?["'])?\s*[:=]?\s*(?:\\?["'])?([\w.+/=~-]{16,})"""
)
_KEY_MARK = "\x00key\x00"


@dataclass(slots=True)
class Deidentifier:
    """De-identifies by the rules and by `names`, as they are or in other letters, whole words. `counts`: what was
    found, by kind."""

    names: Sequence[str] = ()
    counts: Counter[str] = field(default_factory=Counter)

    def trace(self, trace: Trace) -> Trace:
        """Without personal data."""
        marks = _Marks(self._name_rule(), self.counts)
        said = trace.rating
        return replace(
            trace,
            messages=tuple(marks.tree(each) for each in trace.messages),
            reply=marks.tree(trace.reply),
            tools=tuple(marks.tree(each) for each in trace.tools),
            session=marks.text(trace.session),
            rating=Rating(said.reward, said.liked, marks.told(said.corrected), marks.told(said.comment)),
        )

    def _name_rule(self) -> re.Pattern[str] | None:
        names = sorted((name.split() for name in self.names if name.strip()), key=lambda each: -len("".join(each)))
        words = [_apart(r"\s+".join(map(re.escape, each)), each[0][0], each[-1][-1]) for each in names]
        return re.compile("|".join(words), re.IGNORECASE) if words else None


class _Marks:
    """The marks that one conversation's names get."""

    def __init__(self, names: re.Pattern[str] | None, counts: Counter[str]) -> None:
        self._names, self._counts = names, counts
        self._known: dict[tuple[str, str], str] = {}

    def told(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def text(self, text: str) -> str:
        text = _KEY.sub(lambda match: match[0].replace(match[1], self._mark("KEY", match[1])), text)
        hidden = without_secret_shapes(text, _KEY_MARK)
        while _KEY_MARK in hidden:
            hidden = hidden.replace(_KEY_MARK, self._mark("KEY", ""), 1)
        text = self._sub("EMAIL", _EMAIL, hidden, str.lower)
        text = _CARD.sub(lambda match: self._cards(match[0]), text)
        text = self._sub("IP", _V4, text, str, _is_address)
        text = _V6.sub(self._v6, text)
        text = self._sub("PHONE", _PHONE, text, _digits, lambda found: 7 <= len(_digits(found)) <= 15)
        return text if self._names is None else self._sub("NAME", self._names, text, _name)

    def tree(self, value: Any, name: str = "") -> Any:
        """Every text of a message but its role and ids."""
        if isinstance(value, str):
            return value if name in ("role", "type", "id", "tool_call_id") else self.text(value)
        if isinstance(value, Mapping):
            return {key: self.tree(item, key) for key, item in value.items()}
        return [self.tree(item, name) for item in value] if isinstance(value, (list, tuple)) else value

    def _sub(
        self,
        kind: str,
        rule: re.Pattern[str],
        text: str,
        same: Callable[[str], str],
        real: Callable[[str], bool] = lambda found: True,
    ) -> str:
        return rule.sub(lambda match: self._mark(kind, same(match[0])) if real(match[0]) else match[0], text)

    def _v6(self, match: re.Match[str]) -> str:
        """The address with the word and colon before it, or a colon behind it, which are no part of it."""
        told, whole = match[0], match[1]
        for found in (told, whole, whole.removesuffix(":")):
            if _is_address(found):
                return told.replace(found, self._mark("IP", found.lower()), 1)
        return told

    def _cards(self, text: str) -> str:
        """A row of digits, of which some may be a card's and others its date or an amount."""
        groups = [(found.start(), found.end()) for found in re.finditer(r"\d+", text)]
        for first in range(len(groups)):
            for last in range(min(len(groups), first + 5), first, -1):
                sizes = tuple(end - start for start, end in groups[first:last])
                start, end = groups[first][0], groups[last - 1][1]
                fits = sizes in _GROUPS or (len(sizes) == 1 and 13 <= sizes[0] <= 19)
                if fits and _is_card(text[start:end]):
                    return text[:start] + self._mark("CARD", _digits(text[start:end])) + self._cards(text[end:])
        whole = 13 <= len(_digits(text)) <= 19 and _is_card(text)
        return self._mark("CARD", _digits(text)) if whole else text

    def _mark(self, kind: str, value: str) -> str:
        self._counts[kind] += 1
        mark = self._known.get((kind, value))
        if mark is None:
            number = 1 + sum(known == kind for known, _ in self._known)
            mark = self._known[kind, value] = f"<{kind}_{number}>"
        return mark


def _apart(word: str, first: str, last: str) -> str:
    """The rule for a word that is no part of another, where its script shows that."""
    before = rf"(?<!{_LETTER})" if re.fullmatch(_LETTER, first) else ""
    return before + word + (rf"(?!{_LETTER})" if re.fullmatch(_LETTER, last) else "")


def _name(text: str) -> str:
    return " ".join(text.casefold().split())


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _is_card(text: str) -> bool:
    """Whether the check digit is right (Luhn, ISO/IEC 7812-1)."""
    digits = [int(each) for each in reversed(_digits(text))]
    doubled = [each if at % 2 == 0 else each * 2 - 9 * (each > 4) for at, each in enumerate(digits)]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not address.is_unspecified and not address.is_loopback
