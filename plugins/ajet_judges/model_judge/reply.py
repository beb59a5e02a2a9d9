"""Parses the replies of judging models.

Invariant: a reply is one complete JSON object of the requested schema, each key once, with only reasoning before it and
a code fence around it (or one word, for templates that ask for it). Otherwise it is rejected. Replies are not searched:
an end-of-reasoning tag quoted inside a text does not end the reasoning. Raw line breaks and unescaped LaTeX backslashes
are accepted.
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
from ajet.task_judge.extraction import find_thought_ends

VerdictWord = Literal["correct", "incorrect", "undecided"]
WORDS: tuple[VerdictWord, ...] = ("correct", "incorrect", "undecided")
VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": list(WORDS)}},
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}
LONGEST = 100_000
"""Maximum characters of a verdict; thoughts before it may be longer."""
MOST_THOUGHTS = 100
"""Maximum thought marks tried as the end of the thoughts."""
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/]|[nrt](?![a-z]{2}))|\\')
"""A backslash with its escape, or alone. In text with LaTeX backslashes, "\\neq" is no line break."""
_EMPHASIS = " \t\r\n*_`\"'.!"


class UnreadableReplyError(AjetError):
    """The reply of a judging model has not the requested form."""


@dataclass(frozen=True, slots=True)
class ModelVote:
    """One model's verdict and its reason."""

    verdict: VerdictWord
    reason: str


def parse_vote(text: str) -> ModelVote:
    """Return the verdict of a reply: a JSON object of the schema VERDICT, or one word after the reasoning.

    Raises:
        UnreadableReplyError: the reply has another form.
    """
    answer_start = ([0, *find_thought_ends(text)])[-1]
    bare_answer = text[answer_start:].strip(_EMPHASIS).lower()
    for word in WORDS:
        if bare_answer == word:
            return ModelVote(word, "")
    content = parse_object(text, VERDICT)
    return ModelVote(content["verdict"], content["reason"])


def build_tiers_schema(labels: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of a ranking of attempts with these labels."""
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


def parse_tiers(text: str, labels: Sequence[str]) -> tuple[list[list[str]], str]:
    """Parse a ranking of attempts.

    Returns:
        Labels from best to worst with tied ones together and undecided ones left out, and the reason.

    Raises:
        UnreadableReplyError: the reply has another form, or a label is missing or repeated.
    """
    content = parse_object(text, build_tiers_schema(labels))
    tiers = [tier for tier in content["tiers"] if tier]
    placed = sorted([label for tier in tiers for label in tier] + content["undecided"])
    if placed != sorted(labels):
        raise UnreadableReplyError("the reply does not name each attempt once")
    return tiers, content["reason"]


def parse_object(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Parse a reply as a JSON object of the schema, and replace lone surrogates in it.

    Raises:
        UnreadableReplyError: the reply is no such object.
    """
    try:
        content = _load_object(_strip_thoughts(text))
        problem = find_reply_problem(json.dumps(content), schema)
    except ValueError as error:
        raise UnreadableReplyError(f"the reply is not JSON: {error}") from None
    except RecursionError:
        raise UnreadableReplyError("nested too deeply") from None
    if problem is not None:
        raise UnreadableReplyError(problem)
    return dict(repair_surrogates(content))


def _strip_thoughts(text: str) -> str:
    """Return the text of a reply after its reasoning: the first rest that is one JSON object, else the last rest.

    Each end-of-reasoning tag is tried, since a model may quote the tag inside its answer.

    Raises:
        UnreadableReplyError: the text is empty or too long.
    """
    candidate = ""
    for start in [0, *find_thought_ends(text)][-MOST_THOUGHTS:]:
        candidate = text[start:].strip()
        if candidate.startswith(("{", "`", "~")) and len(candidate) <= LONGEST:
            candidate = unfence(candidate, _is_object)
            if _is_object(candidate):
                return candidate
    if not candidate:
        raise UnreadableReplyError("the reply is empty")
    if len(candidate) > LONGEST:
        raise UnreadableReplyError("the reply is too long")
    return candidate


def _is_object(text: str) -> bool:
    """Return True if the text is complete JSON."""
    try:
        _load_object(text)
    except (ValueError, RecursionError):
        return False
    return True


def _load_object(text: str) -> Any:
    """Parse JSON that may contain raw line breaks in texts, and unescaped backslashes as in LaTeX.

    Raises ValueError.
    """
    try:
        return json.loads(text, object_pairs_hook=_reject_repeated_keys, strict=False)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Invalid \\"):
            raise
    doubled = _ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else r"\\", text)
    return json.loads(doubled, object_pairs_hook=_reject_repeated_keys, strict=False)


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs. Raises ValueError for a repeated key, whose values json would drop."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key is repeated")
    return content
