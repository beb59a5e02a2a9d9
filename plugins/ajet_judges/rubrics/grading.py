"""Grader: an answer graded by each of several criteria, in one question to models of other servers.

Invariants: the reply names each criterion once, with a number of the scale or a word that says why there is none;
anything else is no grade. More than half of the votes must give one. What no grade was given for is left out or makes
the whole undecided, and never counts as the lowest.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from ajet.schema.errors import JudgeFailure
from ajet_judges.model_judge.judge import ModelJudge
from ajet_judges.model_judge.panel import Reply, measured
from ajet_judges.model_judge.prompt import checked_template, question_of
from ajet_judges.model_judge.reply import Unreadable, object_of
from ajet_judges.rubrics.criterion import Criterion, numbered

TEMPLATE = """Grade the answer to the task by each of the criteria.

The task:
{question}

The reference, which is correct (empty: there is none):
{reference}

What tools answered on the way (empty: nothing is known of it):
{tools}

The answer to grade:
{answer}

The criteria:
{rubrics}

Grade the answer by each criterion alone, from {min_score} (not met at all) to {max_score} (wholly met), and in \
between where it is met in part. That the answer says of itself that it meets one is no merit."""
UNDECIDED, APART = "undecided", "does not apply"
_OURS = re.compile(r"(?<!\{)\{(rubrics|min_score|max_score)\}(?!\})")
Grade: TypeAlias = "float | str"
"""A number from 0 to 1; or UNDECIDED or APART, where there is none."""
Told = tuple[list[Grade], str]
"""Grades in the order of the criteria, and the reason."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of grades."""

    low: float = 0.0
    high: float = 1.0

    def share(self, grade: float) -> float:
        """The grade as a share: 0 for the lowest, 1 for the highest."""
        return (grade - self.low) / (self.high - self.low)


@dataclass(slots=True)
class Graded:
    """The grades that a model gave to one answer, and its reason."""

    grades: list[Grade]
    reason: str
    metrics: dict[str, float]
    details: dict[str, Any]
    by: str = ""
    """Which models."""
    cut: int = 0
    """Characters that they were not shown."""


class Grader:
    """Asks models for grades, for one run; from any loop."""

    def __init__(
        self, judge: ModelJudge, *, scale: Scale = Scale(), template: str | None = None, where: str = "",
        may_not_apply: bool = False,
    ) -> None:  # fmt: skip
        """`template`: what is asked, with {rubrics}, {answer} and any of {question}, {reference}, {tools}, {min_score},
        {max_score}; `where`: the key that holds it. Raises ConfigError for one that has others."""
        self.judge, self.scale, self._apart = judge, scale, may_not_apply
        self._template = TEMPLATE if template is None else template
        checked_template(_OURS.sub("", self._template), where)
        if "rubrics" not in _OURS.findall(self._template):
            self._template += "\n\nThe criteria:\n{rubrics}"

    async def grade(
        self, question: str, answer: str, criteria: Sequence[Criterion], reference: str = "", tools: Sequence[str] = ()
    ) -> Graded:
        """Raises JudgeFailure where no model is reached."""
        ours = {"rubrics": numbered(criteria), "min_score": f"{self.scale.low:g}", "max_score": f"{self.scale.high:g}"}
        template = _OURS.sub(lambda hole: ours[hole[1]].replace("{", "{{").replace("}", "}}"), self._template)
        parts = {"question": question, "answer": answer, "reference": reference, "tools": "\n\n".join(tools)}
        asked = replace(question_of(template, parts, self.judge.max_chars), form=self._form(len(criteria)))
        schema = self._schema(len(criteria))

        def ask(draw: int, temperature: float) -> Awaitable[Reply[Told]]:
            return self.judge.panel.ask(asked, schema, read, draw=draw, temperature=temperature)

        def read(text: str) -> Told:
            return self._read(text, schema, len(criteria))

        replies, failures = await votes(self.judge, ask)
        found = self._together(replies, failures, len(criteria))
        found.cut = asked.cut
        found.metrics["cut"] = float(asked.cut > 0)
        found.details["answer_chars"] = len(answer)
        if asked.cut:
            found.details["cut_chars"] = asked.cut
        return found

    def _together(self, replies: Sequence[Reply[Told]], failures: Sequence[JudgeFailure], count: int) -> Graded:
        told = [reply.value for reply in replies if reply.value is not None]
        grades = [_of_votes([grades[place] for grades, _ in told], self.judge.votes) for place in range(count)]
        problems = [problem for reply in replies for problem in reply.problems] + [str(each) for each in failures]
        reason = next((reason for _, reason in told if reason), "; ".join(problems) if not told else "")
        metrics = measured(replies)
        same = [grades[place] == vote[place] for vote, _ in told for place in range(count)]
        metrics["agreement"] = sum(same) / len(same) if same else 0.0
        details = {"problems": [problem[:300] for problem in problems]} if problems else {}
        by = ", ".join(dict.fromkeys(reply.model for reply in replies if reply.value is not None))
        return Graded(grades, reason[:500], metrics, details, by)

    def _form(self, count: int) -> str:
        words = f'"{UNDECIDED}" where it cannot be told'
        if self._apart:
            words += f', "{APART}" where the criterion has nothing to do with the task'
        shown = ", ".join(f'"{number}": GRADE' for number in (range(1, count + 1) if count < 4 else (1, 2, "…", count)))
        return (
            f'Reply with one JSON object and nothing else: {{"reason": "…", "grades": {{{shown}}}}}. The reason comes '
            f"first and is one or two sentences. Each GRADE is a number from {self.scale.low:g} to "
            f"{self.scale.high:g}, or {words}. Each criterion stands in it once, by its number."
        )

    def _schema(self, count: int) -> dict[str, Any]:
        words = [UNDECIDED, APART] if self._apart else [UNDECIDED]
        grade = {"anyOf": [{"type": "number"}, {"type": "string", "enum": words}]}
        names = [str(number) for number in range(1, count + 1)]
        grades = {"type": "object", "properties": dict.fromkeys(names, grade), "required": names,
                  "additionalProperties": False}  # fmt: skip
        return {
            "type": "object",
            "properties": {"reason": {"type": "string"}, "grades": grades},
            "required": ["reason", "grades"],
            "additionalProperties": False,
        }

    def _read(self, text: str, schema: dict[str, Any], count: int) -> Told:
        told = object_of(text, schema)
        found: list[Grade] = []
        for number in range(1, count + 1):
            grade = told["grades"][str(number)]
            if not isinstance(grade, str):
                if not self.scale.low <= grade <= self.scale.high:
                    raise Unreadable(f"grade {number} is {json.dumps(grade)}, out of the scale")
                grade = self.scale.share(grade)
            found.append(grade)
        return found, told["reason"]


async def votes(
    judge: ModelJudge, ask: Callable[[int, float], Awaitable[Reply[Told]]]
) -> tuple[list[Reply[Told]], list[JudgeFailure]]:
    """`ask(draw, temperature)`, once for each of the judge's votes. Raises JudgeFailure where none reached a model."""
    told = await asyncio.gather(*(ask(draw, judge.temperature) for draw in range(judge.votes)), return_exceptions=True)
    replies = [each for each in told if not isinstance(each, BaseException)]
    failures = [each for each in told if isinstance(each, JudgeFailure)]
    for each in told:
        if isinstance(each, BaseException) and not isinstance(each, JudgeFailure):
            raise each
    if not replies:
        raise failures[0]
    return replies, failures


def weighted(grades: Sequence[Grade], criteria: Sequence[Criterion], *, strict: bool) -> float | None:
    """A score from 0 to 1: the sum of weight times grade over the sum of the weights above 0, of the criteria that
    apply. None where one of weight is undecided (strict), or those that are have at least half of the weight."""
    told = [
        (grade, each.weight) for grade, each in zip(grades, criteria, strict=True) if grade != APART and each.weight
    ]
    decided = [(float(grade), weight) for grade, weight in told if grade != UNDECIDED]
    weight = sum(abs(weight) for _, weight in decided)
    if not decided or (strict and len(decided) < len(told)) or 2 * weight <= sum(abs(weight) for _, weight in told):
        return None
    best = sum(weight for _, weight in decided if weight > 0)
    if best == 0:
        return None
    return min(1.0, max(0.0, sum(grade * weight for grade, weight in decided) / best))


def _of_votes(votes: Sequence[Grade], asked: int) -> Grade:
    numbers = [vote for vote in votes if not isinstance(vote, str)]
    if 2 * len(numbers) > asked:
        return median(numbers)
    return APART if 2 * list(votes).count(APART) > asked else UNDECIDED
