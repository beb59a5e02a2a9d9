"""Build prompts for writing criteria, and parse their replies.

Invariant: examples stand between marks that their text cannot contain (`model_judge.prompt`); a reply is a complete
list of criteria or rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet_judges.model_judge.prompt import JudgeQuestion, shorten_text
from ajet_judges.model_judge.reply import UnreadableReplyError, parse_object
from ajet_judges.rubrics.criterion import Criterion, make_criterion, number_criteria
from ajet_judges.rubrics.examples import RubricExample
from ajet_judges.rubrics.grading import NOT_APPLICABLE, Grade, GradeScale

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


def build_proposal(example: RubricExample, scale: GradeScale, count: int, language: str, limit: int) -> JudgeQuestion:
    """Return a prompt that requests criteria which explain an example's labels.

    Args:
        count: number of criteria to write.
        limit: characters of each text; longer ones are cut.
    """
    head = "Somebody judged the following work. Write the criteria that they must have gone by.\n\nThe task:\n"
    pieces, cut = _build_pieces(example, scale, limit, head)
    return JudgeQuestion((*pieces, (WANTED, None)), _build_form(count, language), cut)


def build_revision(
    example: RubricExample, scale: GradeScale, criteria: Sequence[Criterion], grades: Sequence[Sequence[Grade]],
    language: str, limit: int,
) -> JudgeQuestion:  # fmt: skip
    """Return a prompt that requests better criteria, and shows where the present grades are wrong.

    Args:
        grades: a list of grades per answer, in the order of `criteria`.
        limit: characters of each text; longer ones are cut.
    """
    head = (
        "Criteria were written for the following work, and graded by them it does not come out as it was judged. Write "
        "better ones.\n\nThe task:\n"
    )
    pieces, cut = _build_pieces(example, scale, limit, head)
    lines = [f"\n\nThe criteria so far:\n{number_criteria(criteria)}\n\nGraded by them:"]
    for index, answer_grades in enumerate(grades):
        label = f"answer {index + 1}: " if len(grades) > 1 else ""
        lines.append(f"\n{label}{', '.join(_format_grade(grade, scale) for grade in answer_grades)}")
    return JudgeQuestion((*pieces, ("".join(lines) + WANTED, None)), _build_form(len(criteria), language), cut)


def build_categorisation(criteria: Sequence[Criterion], limit: int, language: str) -> JudgeQuestion:
    """Return a prompt that requests a grouping of the criteria into at most `limit` categories."""
    numbered = "\n".join(f"{number}. {criterion.text}" for number, criterion in enumerate(criteria, 1))
    form = (
        'Reply with one JSON object and nothing else: {"categories": [{"name": "…", "criteria": [1, …]}, …]}. Each '
        f"number stands in it once; there are at most {limit} categories, named in {_name_language(language)}."
    )
    return JudgeQuestion((("Sort these criteria into groups that belong together:\n", numbered),), form)


def parse_criteria_reply(text: str, count: int) -> list[Criterion]:
    """Return the criteria of a reply, at least one and at most `count`. Raises UnreadableReplyError."""
    written = parse_object(text, CRITERIA)["criteria"]
    if not 1 <= len(written) <= count:
        raise UnreadableReplyError(f"it has {len(written)} criteria, and {count} were asked for")
    try:
        return [make_criterion(criterion_text) for criterion_text in written]
    except ValueError as problem:
        raise UnreadableReplyError(str(problem)) from None


def parse_categories_reply(text: str, count: int, limit: int) -> list[tuple[str, list[int]]]:
    """Parse a grouping of criteria into (category name, criterion indexes from 0).

    Args:
        count: number of criteria.
        limit: largest number of categories.

    Raises:
        UnreadableReplyError: the reply has another form, or a criterion is missing or repeated.
    """
    groups = parse_object(text, CATEGORIES)["categories"]
    categories = [(" ".join(group["name"].split())[:LONGEST_CATEGORY], group["criteria"]) for group in groups]
    categories = [(name, numbers) for name, numbers in categories if numbers]
    if sorted(number for _, numbers in categories for number in numbers) != list(range(1, count + 1)):
        raise UnreadableReplyError("a criterion is missing from the grouping, or is in two categories")
    if len(categories) > limit or not all(name for name, _ in categories):
        raise UnreadableReplyError(
            f"it has {len(categories)} categories, and at most {limit} were asked for, each with a name"
        )
    return [(name, [number - 1 for number in numbers]) for name, numbers in categories]


def _build_pieces(
    example: RubricExample, scale: GradeScale, limit: int, head: str
) -> tuple[list[tuple[str, str | None]], int]:
    """Return the pieces of a prompt that show an example with its labels, and the number of omitted characters.

    Several answers are shown with their ranks, one answer with its grade on the scale.

    Args:
        limit: characters of each text; longer ones are cut.
        head: first text of the prompt.
    """
    query, cut = shorten_text(example.query, limit)
    pieces: list[tuple[str, str | None]] = [(head, query)]
    if example.reference:
        shown_reference, omitted = shorten_text(example.reference, limit)
        pieces.append(("\n\nThe reference, which is correct:\n", shown_reference))
        cut += omitted
    is_ranked = len(example.answers) > 1
    distinct_labels = sorted({answer.label for answer in example.answers}, reverse=True)
    for number, answer in enumerate(example.answers, 1):
        text, omitted = shorten_text(answer.text, max(2 * limit // len(example.answers), 200))
        label = f"Answer {number}" if is_ranked else "The answer"
        judged = (
            f"rank {distinct_labels.index(answer.label) + 1} (1 is the best)"
            if is_ranked
            else f"{scale.low + answer.label * (scale.high - scale.low):g} (from {scale.low:g} to {scale.high:g})"
        )
        pieces.append((f"\n\n{label}, judged {judged}:\n", text))
        cut += omitted
    return pieces, cut


def _build_form(count: int, language: str) -> str:
    """Return the instruction on the form of a reply with `count` criteria."""
    return FORM % (count, _name_language(language))


def _name_language(language: str) -> str:
    """Return the language's English name for a known code, else the setting itself."""
    return LANGUAGES.get(language.lower(), language)


def _format_grade(grade: Grade, scale: GradeScale) -> str:
    """Return a grade on the configured scale as text; a word stays as it is."""
    if isinstance(grade, str):
        return NOT_APPLICABLE if grade == NOT_APPLICABLE else grade
    return f"{scale.low + grade * (scale.high - scale.low):g}"
