"""What a judge's reply says.

Invariant: a reply is a verdict as a whole or it is none: one JSON object of the form that was asked for, with each key
once, and nothing around it but thoughts before it and a fence (or, for templates that ask for it, one word alone).
Nothing is searched for in it: a mark of thoughts that its texts quote, from an answer that is judged, ends nothing.
Line breaks in its texts, and the backslashes of unescaped LaTeX, are read as they are meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ajet.schema.errors import AjetError
from ajet.schema.fenced import unfence
from ajet.schema.json_schema import find_reply_problem
from ajet.schema.settled import repair_surrogates
from ajet.task_judge.extraction import thought_ends

Said = Literal["correct", "incorrect", "undecided"]
WORDS: tuple[Said, ...] = ("correct", "incorrect", "undecided")
VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": list(WORDS)}},
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
LONGEST = 100_000
"""Characters of a verdict; thoughts before it may be longer."""
MOST_THOUGHTS = 100
"""Thoughts of a reply that are taken off."""
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/]|[nrt](?![a-z]{2}))|\\')
"""A backslash with what it escapes, or alone. In a text whose backslashes are LaTeX's, "\\neq" is no line break."""
_EMPHASIS = " \t\r\n*_`\"'.!"


class Unreadable(AjetError):
    """Why a reply is no verdict."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One model's verdict."""

    verdict: Said
    reason: str


def vote_of(text: str) -> Vote:
    """The verdict of a reply. Raises Unreadable."""
    after = ([0, *thought_ends(text)])[-1]
    alone = text[after:].strip(_EMPHASIS).lower()
    for word in WORDS:
        if alone == word:
            return Vote(word, "")
    told = object_of(text, VERDICT)
    return Vote(told["verdict"], told["reason"])


def tiers_schema(labels: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a ranking of these labels."""
    names = {"type": "array", "items": {"type": "string", "enum": list(labels)}}
    return {
        "type": "object",
        "properties": {
            "reason": {"type": "string"},
            "tiers": {"type": "array", "items": names},
            "undecided": names,
        },
        "required": ["reason", "tiers", "undecided"],
        "additionalProperties": False,
    }


def tiers_of(text: str, labels: Sequence[str]) -> tuple[list[list[str]], str]:
    """The labels from best to worst, those as good as each other together, without the undecided; and why. Raises
    Unreadable, also where a label is left out or stands twice."""
    told = object_of(text, tiers_schema(labels))
    tiers = [tier for tier in told["tiers"] if tier]
    named = sorted([label for tier in tiers for label in tier] + told["undecided"])
    if named != sorted(labels):
        raise Unreadable("it does not name each attempt once")
    return tiers, told["reason"]


def object_of(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The one JSON object that a reply is, in whole letters. Raises Unreadable."""
    try:
        told = _load_object(_without_thoughts(text))
        problem = find_reply_problem(json.dumps(told), schema)
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    if problem is not None:
        raise Unreadable(problem)
    return dict(repair_surrogates(told))


def _without_thoughts(text: str) -> str:
    """Return the longest end of a reply that is one object; the end behind all thoughts where none is. Raises
    Unreadable."""
    whole = ""
    for start in [0, *thought_ends(text)][-MOST_THOUGHTS:]:
        whole = text[start:].strip()
        if whole.startswith(("{", "`", "~")) and len(whole) <= LONGEST:
            whole = unfence(whole, _is_object)
            if _is_object(whole):
                return whole
    if not whole:
        raise Unreadable("it is empty")
    if len(whole) > LONGEST:
        raise Unreadable("it is too long")
    return whole


def _is_object(text: str) -> bool:
    try:
        _load_object(text)
    except (ValueError, RecursionError):
        return False
    return True


def _load_object(text: str) -> Any:
    """Return JSON as models write it: with raw line breaks in its texts, and backslashes that begin no escape."""
    try:
        return json.loads(text, object_pairs_hook=_once, strict=False)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Invalid \\"):
            raise
    doubled = _ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else r"\\", text)
    return json.loads(doubled, object_pairs_hook=_once, strict=False)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found
