"""The scorer `rubric`: grade an answer by the task's own criteria, with partial credit by weight.

Invariant: the rubric comes from the row or the scorer's arguments, never from the answer. An undecided criterion leaves
the verdict without a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.schema.task import Task, WorkflowTask
from ajet.task_judge.extraction import answer_text
from ajet_judges.model_judge.judge import format_question
from ajet_judges.rubrics.criterion import Criterion, parse_criteria
from ajet_judges.rubrics.grading import AnswerGrader, AnswerGrades, weigh_grades

if TYPE_CHECKING:
    from ajet.config import Experiment

IN_ROW = ("rubric", "rubrics")
"""Row fields with a rubric."""


class RubricScorer:
    """Returns a score from 0 to 1. `rubric`: for rows without one; `success_at`: score of a success."""

    def __init__(self, grader: AnswerGrader, rubric: Any = None, success_at: float = 1.0) -> None:
        self._grader, self._success_at = grader, success_at
        self._usual: list[Criterion] | None = None
        if rubric is not None:
            try:
                self._usual = parse_criteria(rubric)
            except ValueError as problem:
                raise ConfigError(
                    f"The scorer rubric: {problem}.",
                    where="ajet.task_judge.scorers",
                    expected="[{criterion: …, weight: …}, …]",
                ) from problem

    @classmethod
    def of_experiment(cls, experiment: Experiment, rubric: Any = None, success_at: float = 1.0) -> RubricScorer:
        """Create the scorer with the models of `task_judge.judges`. Raises ConfigError; UserError if verdicts cannot be
        stored."""
        from ajet_judges.model_judge import ModelJudge

        return cls(AnswerGrader(ModelJudge.of_experiment(experiment)), rubric, success_at)

    async def __call__(
        self, reply: str, task: Task, workflow_task: WorkflowTask, metadata: dict[str, Any], ground_truth: Any = None
    ) -> Verdict:
        """Score a reply; no score without a rubric. Raises JudgeFailure for a malformed rubric, or if no model is
        reachable."""
        rubric = next((metadata[name] for name in IN_ROW if metadata.get(name) not in (None, [], {}, "")), None)
        try:
            criteria = self._usual if rubric is None else parse_criteria(rubric)
        except ValueError as problem:
            raise JudgeFailure(f"the row's rubric is malformed: {problem}") from problem
        if criteria is None:
            return Verdict(None, None, "no score: neither the row nor the scorer has a rubric")
        if not reply.strip():
            return Verdict(0.0, False, "the answer is empty")
        graded = await self._grader.grade_answer(
            format_question(task.main_query, task.init_messages), reply, criteria, answer_text(ground_truth),
            workflow_task.tool_results,
        )  # fmt: skip
        score = weigh_grades(graded.grades, criteria, strict=True)
        return build_verdict(graded, criteria, score, self._success_at)

    def let_go(self) -> None:
        """Close the verdict store. Idempotent."""
        self._grader.judge.let_go()


def build_verdict(
    graded: AnswerGrades, criteria: Sequence[Criterion], score: float | None, success_at: float, *, scorer: str = ""
) -> Verdict:
    """Return the verdict of the grades, with each criterion's grade."""
    details = dict(graded.details)
    details["grades"] = [
        {"criterion": each.text, "grade": grade, "weight": each.weight}
        for each, grade in zip(criteria, graded.grades, strict=True)
    ]
    omitted = f" ({graded.cut} characters were not shown to the judge)" if graded.cut else ""
    if score is None:
        why = f"no score: the judge could not decide: {graded.reason or 'undecided'}{omitted}"
        return Verdict(None, None, why, metrics=graded.metrics, details=details, scorer=scorer)
    reason = (
        f"{graded.by}: {score:g} by {len(criteria)} criteria{f': {graded.reason}' if graded.reason else ''}{omitted}"
    )
    return Verdict(score, score >= success_at, reason, metrics=graded.metrics, details=details, scorer=scorer)
