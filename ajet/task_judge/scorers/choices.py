"""The scorer `multiple_choice`: which of the offered choices an answer names.

Invariant: an answer that names none, or several, is wrong; a choice is named by its letter or by its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.task_judge.extraction import text_of
from ajet.task_judge.scorers.text import plain

LETTERS = "ABCDEFGHIJ"
_MARKS = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}|[*_`$]")
_ALONE = re.compile(r"\(?([A-Ja-j])\)?\s*[.:)]?")
_FIRST = re.compile(r"(?:\(([A-J])\)|([A-J])[.:)])\s*(.*)", re.DOTALL)
_ANNOUNCED = re.compile(
    r"\b(?:answer|choice|option)\b\s*(?:is|:|=)?\s*:?\s*(?:option|choice)?\s*(?:\(([A-J])\)|([A-J])(?![A-Za-z'’]))",
    re.IGNORECASE,
)
_ANOTHER = re.compile(r"\s*(?:or|and|,|/|&)\s*\(?[A-J]\)?(?![A-Za-z])")
_PROSE = re.compile(r"\s+[a-z]")


def multiple_choice(model_answer: str, ground_truth: Any, metadata: dict[str, Any]) -> Verdict:
    """1 for the right choice. The truth is a letter, the text of a choice, or its number from 0; the choices stand in
    the row's `choices` or `options`: a list, a mapping of letters to texts, or {"label": […], "text": […]}. Raises
    JudgeFailure where the truth is none of them."""
    choices = _choices(metadata)
    wanted = _wanted(ground_truth, choices)
    given = named_choice(model_answer, choices)
    if given is None:
        return Verdict(0.0, False, "the answer names no choice, or several")
    return Verdict(float(given == wanted), given == wanted, f"{given}, and {wanted} is right")


def named_choice(answer: str, choices: Mapping[str, str]) -> str | None:
    """The label that an answer names; None for none or several."""
    text = _MARKS.sub(lambda found: found[1] or "", answer).strip()
    alone = _ALONE.fullmatch(text)
    if alone:
        return alone[1].upper()
    if (label := _by_text(text, choices)) is not None:
        return label
    begins = _FIRST.match(text)
    if begins:
        letter, rest = begins[1] or begins[2], begins[3]
        other = _by_text(rest, choices)
        return None if _ANOTHER.match(rest) or (other is not None and other != letter) else letter
    found = None
    for each in _ANNOUNCED.finditer(text):
        letter, rest = (each[1] or each[2]).upper(), text[each.end() : each.end() + 20]
        if not each[1] and (not each[2].isupper() or (letter in "AI" and _PROSE.match(rest))):
            continue  # the article, or the pronoun
        found = None if _ANOTHER.match(rest) else letter
    return found


def _by_text(text: str, choices: Mapping[str, str]) -> str | None:
    said = plain(text).rstrip(".")
    labels = [label for label, choice in choices.items() if said and plain(choice).rstrip(".") == said]
    return labels[0] if len(labels) == 1 else None


def _choices(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = metadata.get("choices", metadata.get("options"))
    if isinstance(found, Mapping) and isinstance(found.get("text"), list):
        labels = found.get("label") or LETTERS
        return {str(label).upper(): text_of(text) for label, text in zip(labels, found["text"], strict=False)}
    if isinstance(found, Mapping):
        return {str(label).upper(): text_of(text) for label, text in found.items()}
    if isinstance(found, (list, tuple)):
        return {letter: text_of(text) for letter, text in zip(LETTERS, found, strict=False)}
    return {}


def _wanted(truth: Any, choices: Mapping[str, str]) -> str:
    labels = [*choices] or [*LETTERS]
    if isinstance(truth, int) and not isinstance(truth, bool) and 0 <= truth < len(labels):
        return labels[truth]
    text = text_of(truth).strip()
    found = _by_text(text, choices) or (text.strip("().: ").upper() if len(text.strip("().: ")) == 1 else None)
    if found is not None and found in labels:
        return found
    raise JudgeFailure(f"the row's answer {text[:80]!r} is none of its choices {', '.join(labels)}")
