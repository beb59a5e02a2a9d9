"""AnswerGrader: a model grades an answer by several criteria in one request.

Invariants: a reply names each criterion once, with a number on the scale or a word for a missing grade. Other replies
are rejected. A grade needs more than half of the votes. A missing grade is left out or makes the verdict undecided, and
never counts as the lowest grade.
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
from ajet_judges.model_judge.panel import JudgeReply, sum_usage
from ajet_judges.model_judge.prompt import build_question, check_template
from ajet_judges.model_judge.reply import UnreadableReplyError, parse_object
from ajet_judges.rubrics.criterion import Criterion, number_criteria

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
UNDECIDED, NOT_APPLICABLE = "undecided", "does not apply"
_OURS = re.compile(r"(?<!\{)\{(rubrics|min_score|max_score)\}(?!\})")
Grade: TypeAlias = "float | str"
"""A number from 0 to 1, or UNDECIDED or NOT_APPLICABLE."""
ParsedGrades = tuple[list[Grade], str]
"""Grades in the order of the criteria, and the reason."""


@dataclass(frozen=True, slots=True)
class GradeScale:
    """The lowest and the highest possible grade."""

    low: float = 0.0
    high: float = 1.0

    def share(self, grade: float) -> float:
        """Map a grade to 0 (lowest) … 1 (highest)."""
        return (grade - self.low) / (self.high - self.low)


@dataclass(slots=True)
class AnswerGrades:
    """The grades of one answer, and the reason."""

    grades: list[Grade]
    reason: str
    metrics: dict[str, float]
    details: dict[str, Any]
    by: str = ""
    """Names of the grading models."""
    cut: int = 0  # number of omitted characters


class AnswerGrader:
    """Requests grades of answers from models, for one run, from any event loop."""

    def __init__(
        self, judge: ModelJudge, *, scale: GradeScale = GradeScale(), template: str | None = None, where: str = "",
        may_not_apply: bool = False,
    ) -> None:  # fmt: skip
        """Create the grader.

        Args:
            scale: lowest and highest grade.
            template: prompt with {rubrics}, {answer} and optionally {question}, {reference}, {tools}, {min_score},
                {max_score}.
            where: configuration key of the template, for errors.
            may_not_apply: True if the model may answer that a criterion does not apply to the task.

        Raises:
            ConfigError: the template is wrong.
        """
        self.judge = judge
        self.scale = scale
        self._may_not_apply = may_not_apply
        self._template = TEMPLATE if template is None else template
        check_template(_OURS.sub("", self._template), where)
        if "rubrics" not in _OURS.findall(self._template):
            self._template += "\n\nThe criteria:\n{rubrics}"

    async def grade_answer(
        self, question: str, answer: str, criteria: Sequence[Criterion], reference: str = "", tools: Sequence[str] = ()
    ) -> AnswerGrades:
        """Grade an answer by each criterion. Raises JudgeFailure if no model is reachable."""
        template_values = {
            "rubrics": number_criteria(criteria),
            "min_score": f"{self.scale.low:g}",
            "max_score": f"{self.scale.high:g}",
        }
        template = _OURS.sub(
            lambda match: template_values[match[1]].replace("{", "{{").replace("}", "}}"), self._template
        )
        parts = {"question": question, "answer": answer, "reference": reference, "tools": "\n\n".join(tools)}
        prompt = replace(build_question(template, parts, self.judge.max_chars), form=self._build_form(len(criteria)))
        schema = self._build_schema(len(criteria))

        def request_vote(draw: int, temperature: float) -> Awaitable[JudgeReply[ParsedGrades]]:
            return self.judge.panel.ask(prompt, schema, parse_reply, draw=draw, temperature=temperature)

        def parse_reply(text: str) -> ParsedGrades:
            return self._parse_grades(text, schema, len(criteria))

        replies, failures = await collect_votes(self.judge, request_vote)
        graded = self._combine_votes(replies, failures, len(criteria))
        graded.cut = prompt.cut
        graded.metrics["cut"] = float(prompt.cut > 0)
        graded.details["answer_chars"] = len(answer)
        if prompt.cut:
            graded.details["cut_chars"] = prompt.cut
        return graded

    def _combine_votes(
        self, replies: Sequence[JudgeReply[ParsedGrades]], failures: Sequence[JudgeFailure], count: int
    ) -> AnswerGrades:
        """Combine the votes into one grade per criterion, with the first reason given.

        Args:
            replies: the received votes.
            failures: failures of the other votes, which are mentioned in the details.
            count: number of criteria.
        """
        parsed = [reply.value for reply in replies if reply.value is not None]
        grades = [_combine_grades([grades[index] for grades, _ in parsed], self.judge.votes) for index in range(count)]
        problems = [problem for reply in replies for problem in reply.problems] + [str(failure) for failure in failures]
        reason = next((reason for _, reason in parsed if reason), "; ".join(problems) if not parsed else "")
        metrics = sum_usage(replies)
        equal_grades = [grades[index] == vote[index] for vote, _ in parsed for index in range(count)]
        metrics["agreement"] = sum(equal_grades) / len(equal_grades) if equal_grades else 0.0
        details = {"problems": [problem[:300] for problem in problems]} if problems else {}
        models = ", ".join(dict.fromkeys(reply.model for reply in replies if reply.value is not None))
        return AnswerGrades(grades, reason[:500], metrics, details, models)

    def _build_form(self, count: int) -> str:
        """Return the instruction on the form of the reply, for `count` criteria."""
        words = f'"{UNDECIDED}" where it cannot be told'
        if self._may_not_apply:
            words += f', "{NOT_APPLICABLE}" where the criterion has nothing to do with the task'
        # Of many criteria the instruction shows the first two and the last.
        form_entries = ", ".join(
            f'"{number}": GRADE' for number in (range(1, count + 1) if count < 4 else (1, 2, "…", count))
        )
        return (
            f'Reply with one JSON object and nothing else: {{"reason": "…", "grades": {{{form_entries}}}}}. '
            f"The reason comes first and is one or two sentences. Each GRADE is a number from {self.scale.low:g} to "
            f"{self.scale.high:g}, or {words}. Each criterion stands in it once, by its number."
        )

    def _build_schema(self, count: int) -> dict[str, Any]:
        """Return the JSON schema of a reply with a reason and one grade per criterion, by its number."""
        words = [UNDECIDED, NOT_APPLICABLE] if self._may_not_apply else [UNDECIDED]
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

    def _parse_grades(self, text: str, schema: dict[str, Any], count: int) -> ParsedGrades:
        """Parse a reply into (grades from 0 to 1 or words, reason).

        Raises:
            UnreadableReplyError: the reply has another form, or a grade is outside of the scale.
        """
        parsed = parse_object(text, schema)
        grades: list[Grade] = []
        for number in range(1, count + 1):
            grade = parsed["grades"][str(number)]
            if not isinstance(grade, str):
                if not self.scale.low <= grade <= self.scale.high:
                    raise UnreadableReplyError(f"grade {number} is {json.dumps(grade)}, out of the scale")
                grade = self.scale.share(grade)
            grades.append(grade)
        return grades, parsed["reason"]


async def collect_votes(
    judge: ModelJudge, ask: Callable[[int, float], Awaitable[JudgeReply[ParsedGrades]]]
) -> tuple[list[JudgeReply[ParsedGrades]], list[JudgeFailure]]:
    """Request one reply per vote, and return the replies and the failures.

    Args:
        ask: sends one request, given the vote's index and the temperature.

    Raises:
        JudgeFailure: no vote reached a model.
    """
    results = await asyncio.gather(
        *(ask(number, judge.temperature) for number in range(judge.votes)), return_exceptions=True
    )
    replies = [result for result in results if not isinstance(result, BaseException)]
    failures = [result for result in results if isinstance(result, JudgeFailure)]
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, JudgeFailure):
            raise result
    if not replies:
        raise failures[0]
    return replies, failures


def weigh_grades(grades: Sequence[Grade], criteria: Sequence[Criterion], *, strict: bool) -> float | None:
    """Return the weighted score from 0 to 1, or None if it is undecided.

    The score is the sum of weight * grade over the sum of positive weights, for applicable criteria.

    Args:
        strict: True if one undecided weighted criterion makes the score undecided. Otherwise this takes undecided
            criteria with at least half of the weight.
    """
    applied = [
        (grade, criterion.weight)
        for grade, criterion in zip(grades, criteria, strict=True)
        if grade != NOT_APPLICABLE and criterion.weight
    ]
    decided = [(float(grade), weight) for grade, weight in applied if grade != UNDECIDED]
    weight = sum(abs(weight) for _, weight in decided)
    if (
        not decided
        or (strict and len(decided) < len(applied))
        or 2 * weight <= sum(abs(weight) for _, weight in applied)
    ):
        return None
    best_score = sum(weight for _, weight in decided if weight > 0)
    if best_score == 0:
        return None
    return min(1.0, max(0.0, sum(grade * weight for grade, weight in decided) / best_score))


def _combine_grades(votes: Sequence[Grade], vote_count: int) -> Grade:
    """Return the median of the numeric votes if they are a majority, else NOT_APPLICABLE or UNDECIDED.

    Args:
        votes: the received grades of one criterion.
        vote_count: number of requested votes; missing ones count against a majority.
    """
    numbers = [vote for vote in votes if not isinstance(vote, str)]
    if 2 * len(numbers) > vote_count:
        return median(numbers)
    return NOT_APPLICABLE if 2 * list(votes).count(NOT_APPLICABLE) > vote_count else UNDECIDED
