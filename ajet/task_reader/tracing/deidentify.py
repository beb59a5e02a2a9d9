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

_EMAIL = re.compile(r"[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}\w{2,24}")
_V4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_V6 = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_CARD = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-]|\.\d)")
_PHONE = re.compile(
    r"(?<![\w.])(?:"
    r"(?:\+|00)\d{1,3}(?:[ ./-]?\(?\d{1,5}\)?){2,6}"  # international
    r"|\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}"  # North America
    r"|0\d{1,4}[ /-]\d{2,4}(?:[ -]?\d{2,4}){1,3}"  # with an area's number
    r"|1[3-9]\d{9}"  # mobile, China
    r"|1[3-9]\d[ -]\d{4}[ -]\d{4}"
    r")(?!\w)"
)
_KEY = re.compile(r"(?i)\b(?:bearer|api[_-]?key|password|passwd|token|secret)\b\s*[:=]?\s*([\w.+/=~-]{16,})")
_KEY_MARK = "\x00key\x00"


@dataclass(slots=True)
class Deidentifier:
    """By the rules and by `names`, as they are or in other letters, whole words. `counts`: what was found, by kind."""

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
            session=marks.text(trace.session),
            rating=Rating(said.reward, said.liked, marks.told(said.corrected), marks.told(said.comment)),
        )

    def _name_rule(self) -> re.Pattern[str] | None:
        words = sorted((re.escape(name.strip()) for name in self.names if name.strip()), key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE) if words else None


class _Marks:
    """Of one conversation."""

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
        text = self._sub("CARD", _CARD, text, _digits, _is_card)
        text = self._sub("IP", _V4, text, str, _is_address)
        text = self._sub("IP", _V6, text, str.lower, _is_address)
        text = self._sub("PHONE", _PHONE, text, _digits, lambda found: 7 <= len(_digits(found)) <= 15)
        return text if self._names is None else self._sub("NAME", self._names, text, str.casefold)

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

    def _mark(self, kind: str, value: str) -> str:
        self._counts[kind] += 1
        mark = self._known.get((kind, value))
        if mark is None:
            number = 1 + sum(known == kind for known, _ in self._known)
            mark = self._known[kind, value] = f"<{kind}_{number}>"
        return mark


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _is_card(text: str) -> bool:
    """By the check digit (Luhn, ISO/IEC 7812-1)."""
    digits = [int(each) for each in reversed(_digits(text))]
    doubled = [each if at % 2 == 0 else each * 2 - 9 * (each > 4) for at, each in enumerate(digits)]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not address.is_unspecified and not address.is_loopback
