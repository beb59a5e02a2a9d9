"""What a judge's reply says.

Invariant: a reply is a verdict as a whole or it is none: one JSON object of the form that was asked for, with each key
once, and nothing around it but its thoughts and a fence (or, for templates that ask for it, one word alone). Nothing is
searched for in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ajet.schema.errors import AjetError
from ajet.schema.json_schema import problem_of_reply
from ajet.schema.settled import with_whole_letters
from ajet.task_judge.extraction import visible

Said = Literal["correct", "incorrect", "undecided"]
WORDS: tuple[Said, ...] = ("correct", "incorrect", "undecided")
VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": list(WORDS)}},
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
LONGEST = 100_000
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n```", re.DOTALL)


class Unreadable(AjetError):
    """Why a reply is no verdict."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One model's verdict."""

    verdict: Said
    reason: str


def vote_of(text: str) -> Vote:
    """The verdict of a reply. Raises Unreadable."""
    for word in WORDS:
        if text.strip().rstrip(".").lower() == word:
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
    whole = visible(text[: LONGEST + 1]).strip()
    if not whole:
        raise Unreadable("it is empty")
    if len(whole) > LONGEST:
        raise Unreadable("it is too long")
    fenced = _FENCE.fullmatch(whole)
    whole = fenced[1] if fenced else whole
    if (problem := problem_of_reply(whole, schema)) is not None:
        raise Unreadable(problem)
    try:
        told = with_whole_letters(json.loads(whole, object_pairs_hook=_once))
    except ValueError as error:
        raise Unreadable(str(error)) from None
    return dict(told)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands in it twice")
    return found
