"""What a model that writes criteria is asked, and what its reply says.

Invariant: examples stand between marks that nothing in them can close (`model_judge.prompt`); a reply is a list of
criteria as a whole or it is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet_judges.model_judge.prompt import Question, shortened
from ajet_judges.model_judge.reply import Unreadable, object_of
from ajet_judges.rubrics.criterion import Criterion, criterion_of, numbered
from ajet_judges.rubrics.examples import Example
from ajet_judges.rubrics.grading import APART, Grade, Scale

LANGUAGES = {"en": "English", "zh": "Chinese"}
LONGEST_CATEGORY = 60
CRITERIA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "criteria": {"type": "array", "items": {"type": "string"}}},
    "required": ["reason", "criteria"],
    "additionalProperties": False,
}
CATEGORIES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "categories": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "criteria": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["name", "criteria"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["categories"],
    "additionalProperties": False,
}
FORM = (
    'Reply with one JSON object and nothing else: {"reason": "…", "criteria": ["…"]}, with exactly %d of them, a '
    "sentence each, in %s. The reason comes first and is one sentence."
)
WANTED = (
    "\n\nA criterion says what makes an answer to tasks of this kind good, so that somebody who sees another task and "
    "another answer can grade by it. It names no word of this task or these answers, and speaks of one thing."
)


def proposal(example: Example, scale: Scale, count: int, language: str, longest: int) -> Question:
    """Asks for criteria by which the labels of an example follow."""
    head = "Somebody judged the following work. Write the criteria that they must have gone by.\n\nThe task:\n"
    pieces, cut = _shown(example, scale, longest, head)
    return Question((*pieces, (WANTED, None)), _form(count, language), cut)


def revision(
    example: Example, scale: Scale, criteria: Sequence[Criterion], grades: Sequence[Sequence[Grade]],
    language: str, longest: int,
) -> Question:  # fmt: skip
    """Asks for better ones where those it has gave other grades. `grades`: by answer and criterion."""
    head = (
        "Criteria were written for the following work, and graded by them it does not come out as it was judged. Write "
        "better ones.\n\nThe task:\n"
    )
    pieces, cut = _shown(example, scale, longest, head)
    told = [f"\n\nThe criteria so far:\n{numbered(criteria)}\n\nGraded by them:"]
    for place, of in enumerate(grades):
        named = f"answer {place + 1}: " if len(grades) > 1 else ""
        told.append(f"\n{named}{', '.join(_grade(grade, scale) for grade in of)}")
    return Question((*pieces, ("".join(told) + WANTED, None)), _form(len(criteria), language), cut)


def categorisation(criteria: Sequence[Criterion], most: int, language: str) -> Question:
    """Asks for groups of criteria that belong together."""
    listed = "\n".join(f"{number}. {each.text}" for number, each in enumerate(criteria, 1))
    form = (
        'Reply with one JSON object and nothing else: {"categories": [{"name": "…", "criteria": [1, …]}, …]}. Each '
        f"number stands in it once; there are at most {most} categories, named in {_language(language)}."
    )
    return Question((("Sort these criteria into groups that belong together:\n", listed),), form)


def criteria_told(text: str, count: int) -> list[Criterion]:
    """The criteria in a reply. Raises Unreadable."""
    told = object_of(text, CRITERIA)["criteria"]
    if not 1 <= len(told) <= count:
        raise Unreadable(f"it has {len(told)} criteria, and {count} were asked for")
    try:
        return [criterion_of(each) for each in told]
    except ValueError as problem:
        raise Unreadable(str(problem)) from None


def categories_told(text: str, count: int, most: int) -> list[tuple[str, list[int]]]:
    """Names, with places from 0. Raises Unreadable where a criterion is left out or stands twice."""
    told = object_of(text, CATEGORIES)["categories"]
    found = [(" ".join(each["name"].split())[:LONGEST_CATEGORY], each["criteria"]) for each in told]
    found = [(name, places) for name, places in found if places]
    if sorted(place for _, places in found for place in places) != list(range(1, count + 1)):
        raise Unreadable("it does not name each criterion once")
    if len(found) > most or not all(name for name, _ in found):
        raise Unreadable(f"it has {len(found)} categories, and at most {most} were asked for, each with a name")
    return [(name, [place - 1 for place in places]) for name, places in found]


def _shown(example: Example, scale: Scale, longest: int, head: str) -> tuple[list[tuple[str, str | None]], int]:
    query, cut = shortened(example.query, longest)
    pieces: list[tuple[str, str | None]] = [(head, query)]
    if example.reference:
        known, left = shortened(example.reference, longest)
        pieces.append(("\n\nThe reference, which is correct:\n", known))
        cut += left
    several = len(example.answers) > 1
    better = sorted({each.label for each in example.answers}, reverse=True)
    for number, each in enumerate(example.answers, 1):
        text, left = shortened(each.text, max(2 * longest // len(example.answers), 200))
        named = f"Answer {number}" if several else "The answer"
        told = (
            f"rank {better.index(each.label) + 1} (1 is the best)"
            if several
            else f"{scale.low + each.label * (scale.high - scale.low):g} (from {scale.low:g} to {scale.high:g})"
        )
        pieces.append((f"\n\n{named}, judged {told}:\n", text))
        cut += left
    return pieces, cut


def _form(count: int, language: str) -> str:
    return FORM % (count, _language(language))


def _language(language: str) -> str:
    return LANGUAGES.get(language.lower(), language)


def _grade(grade: Grade, scale: Scale) -> str:
    if isinstance(grade, str):
        return APART if grade == APART else grade
    return f"{scale.low + grade * (scale.high - scale.low):g}"
