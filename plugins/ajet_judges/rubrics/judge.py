"""RubricsJudge: the judge of `judge_type: rubrics_auto_grader`, which grades by criteria that a model wrote.

Invariants: it uses the rubrics whose version (digest of examples and settings) is the present one, or the file `path`.
Missing rubrics are written once, by one process, while others wait. If writing fails, the judge fails once for all
attempts, and never returns a reward.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.record.lock import alone
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, ConfigError, JudgeFailure, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge.extraction import answer_text
from ajet.task_judge.judge import JudgeInput
from ajet_judges.config import JudgeKeys
from ajet_judges.model_judge.judge import compare_attempts, format_question
from ajet_judges.rubrics.criterion import Criterion, number_criteria, parse_criteria
from ajet_judges.rubrics.examples import RubricExample, get_field, get_query, read_examples
from ajet_judges.rubrics.grading import AnswerGrader, AnswerGrades, weigh_grades
from ajet_judges.rubrics.making import RubricsMaker, count_most_calls
from ajet_judges.rubrics.saved import (
    Rubrics,
    compute_version,
    find_rubrics_file,
    read_rubrics,
    write_file,
    write_rubrics,
)
from ajet_judges.rubrics.settings import open_grader

if TYPE_CHECKING:
    from ajet.config import Experiment


class RubricsJudge:
    """Judges attempts by rubrics, and writes them first if they are missing. Thread-safe."""

    def __init__(self, experiment: Experiment) -> None:
        """Read the examples, unless `path` names existing rubrics. Raises UserError."""
        self._experiment = experiment
        self.settings = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
        self.grader = open_grader(experiment)
        self._model_names = [member.model.model for member in self.grader.judge.panel.members]
        self._lock = threading.Lock()
        self._problem: UserError | None = None
        self._examples: tuple[list[RubricExample], list[RubricExample]] = ([], [])
        self.version = ""
        self.path = find_rubrics_file(experiment, "")
        self._rubrics = read_rubrics(self.path) if self.settings.path is not None else None
        if self._rubrics is None:
            self._read_examples()
            self.path = find_rubrics_file(experiment, self.version)
            self._rubrics = read_rubrics(self.path)
        self.ranks = self if self.settings.grader_mode == "listwise" else None

    def _read_examples(self) -> None:
        """Read the labelled examples, and compute the version of their rubrics. Raises UserError."""
        self._examples = read_examples(self._experiment)
        self.version = compute_version(self._experiment, self._model_names, *self._examples)

    @property
    def rubrics(self) -> Rubrics | None:
        """The rubrics in use, or None before they are written or read."""
        return self._rubrics

    @property
    def said(self) -> str:
        """A sentence for the user about the rubrics, or about the cost of writing them."""
        name = f"rubrics {self.settings.grader_name} ({self.settings.grader_mode}), by {self.grader.judge}"
        if self._rubrics is not None:
            count = len(self._rubrics.criteria)
            noun = "criterion" if count == 1 else "criteria"
            return f"{name}: {count} {noun} of version {self._rubrics.version}, {self.path}"
        most_calls = count_most_calls(self.settings, *self._examples, self.grader.judge.votes)
        return (
            f"{name}: to be written from {len(self._examples[0])} examples with at most {most_calls} calls, {self.path}"
        )

    def __str__(self) -> str:
        """Return the sentence of `said`."""
        return self.said

    def ensure_rubrics(self, say: Callable[[str], None] = logger.info, *, remake: bool = False) -> Rubrics:
        """Return the rubrics, and write them first if they are missing. Blocks.

        Args:
            say: receives progress messages.
            remake: True to write new rubrics in any case.

        Raises:
            UserError: the rubrics cannot be written.
        """
        with self._lock:
            if self._rubrics is not None and not remake:
                return self._rubrics
            if self._problem is not None and not remake:
                raise self._problem
            try:
                lock = self.path.with_name(f".{self.path.name}.lock")
                with alone(lock, "writes the same rubrics", say=say):
                    stored = None if remake else read_rubrics(self.path)
                    self._rubrics = stored or self._make_rubrics(say)
            except UserError as problem:
                self._problem = problem
                raise
            return self._rubrics

    def copy_rubrics(self, text: str) -> None:
        """Store a copy of a rubrics file of this version. Raises UserError."""
        write_file(self.path, text)
        self._rubrics = read_rubrics(self.path)

    async def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        """Judge one attempt. Raises JudgeFailure."""
        metadata, name = workflow_output.metadata, self.settings.answer_field
        if name not in metadata and "final_answer" not in metadata:
            raise JudgeFailure(
                f"the workflow's output has no metadata[{name!r}], which rubrics grade; return the answer as a "
                f"string, or WorkflowOutput(metadata={{{name!r}: …}})"
            )
        answer = answer_text(metadata.get(name, metadata.get("final_answer")))
        if not answer.strip():
            return Verdict(0.0, False, "the answer is empty", scorer=self.settings.grader_name)
        criteria = (await self._get_rubrics()).criteria
        task = workflow_task.task
        graded = await self.grader.grade_answer(
            get_query(task, self.settings.query_field), answer, criteria,
            answer_text(get_field(task, self.settings.reference_field)), workflow_task.tool_results,
        )  # fmt: skip
        score = weigh_grades(graded.grades, criteria, strict=False)
        threshold = self.settings.success_threshold
        verdict = build_verdict(graded, criteria, score, threshold, scorer=self.settings.grader_name)
        verdict.parts = {self.settings.grader_name: score, **_score_categories(graded, criteria)}
        return verdict

    async def compare(self, attempts: Mapping[int, JudgeInput], seed: str) -> dict[int, Verdict]:
        """Rank the attempts at one task by the criteria. Raises JudgeFailure.

        Args:
            attempts: input of each attempt, by its index.
            seed: fixes the shuffled orders in which attempts are shown.
        """
        criteria = number_criteria((await self._get_rubrics()).criteria)
        task = attempts[min(attempts)].task.task
        verdicts = await compare_attempts(
            self.grader.judge, attempts, seed, question=get_query(task, self.settings.query_field),
            reference=answer_text(get_field(task, self.settings.reference_field)), answer=self.settings.answer_field,
            criteria=criteria,
        )  # fmt: skip
        for verdict in verdicts.values():
            verdict.scorer = self.settings.grader_name
            verdict.parts = {self.settings.grader_name: verdict.reward}
        return verdicts

    async def awake(self) -> None:
        """Check that a model is reachable. Raises JudgeFailure."""
        await self.grader.judge.awake()

    def let_go(self) -> None:
        """Close the file of stored verdicts. Idempotent."""
        self.grader.judge.let_go()

    async def _get_rubrics(self) -> Rubrics:
        """Return the rubrics, and write them in a thread if they are missing. Raises JudgeFailure."""
        if self._rubrics is not None:
            return self._rubrics
        try:
            return await asyncio.to_thread(self.ensure_rubrics)
        except UserError as problem:
            raise JudgeFailure(f"there are no rubrics: {problem.what}") from problem

    def _make_rubrics(self, say: Callable[[str], None]) -> Rubrics:
        """Write rubrics from the examples and store them. Raises UserError with advice if that fails."""
        if not self.version:
            self._read_examples()
        examples, held_out = self._examples
        maker = RubricsMaker(self.grader, self.settings, say, self._experiment.ajet.seed)
        try:
            rubrics = asyncio.run(maker.make_rubrics(examples, held_out))
        except BoundaryError as problem:
            raise UserError(
                f"Rubrics could not be written: {problem}.",
                where=str(self.grader.judge),
                expected="a model whose criteria agree with the labels",
                do="check the labels, add examples, or use another model (task_judge.judges)",
            ) from problem
        return write_rubrics(self.path, rubrics, self._experiment, self.version, self._model_names, len(examples))


def _score_categories(
    graded: AnswerGrades, criteria: tuple[Criterion, ...] | list[Criterion]
) -> dict[str, float | None]:
    """Return the weighted score of each category's criteria, from 0 to 1, or None if undecided."""
    names = dict.fromkeys(criterion.category for criterion in criteria if criterion.category)
    scores: dict[str, float | None] = {}
    for name in names:
        indices = [index for index, criterion in enumerate(criteria) if criterion.category == name]
        scores[name] = weigh_grades(
            [graded.grades[index] for index in indices], [criteria[index] for index in indices], strict=False
        )
    return scores


# The scorer `rubric`: grade an answer by the task's own criteria, with partial credit by weight.
# Invariant: the rubric comes from the row or the scorer's arguments, never from the answer. An undecided criterion
# leaves the verdict without a score.
IN_ROW = ("rubric", "rubrics")
"""Row fields with a rubric."""


class RubricScorer:
    """The scorer `rubric`: returns a weighted score from 0 to 1 by the criteria of the task's row.

    Args:
        rubric: criteria for rows without their own.
        success_at: score from which an attempt counts as a success.
    """

    def __init__(self, grader: AnswerGrader, rubric: Any = None, success_at: float = 1.0) -> None:
        self._grader, self._success_at = grader, success_at
        self._default_criteria: list[Criterion] | None = None
        if rubric is not None:
            try:
                self._default_criteria = parse_criteria(rubric)
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
        """Score a reply by its row's rubric. Without a rubric there is no score.

        Raises:
            JudgeFailure: the rubric is malformed, or no model is reachable.
        """
        rubric = next((metadata[name] for name in IN_ROW if metadata.get(name) not in (None, [], {}, "")), None)
        try:
            criteria = self._default_criteria if rubric is None else parse_criteria(rubric)
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
        """Close the file of stored verdicts. Idempotent."""
        self._grader.judge.let_go()


def build_verdict(
    graded: AnswerGrades, criteria: Sequence[Criterion], score: float | None, success_at: float, *, scorer: str = ""
) -> Verdict:
    """Return the verdict of graded criteria, with each grade in its details.

    Args:
        score: weighted score from 0 to 1; None if undecided.
        success_at: score from which an attempt counts as a success.
        scorer: name of the scorer, for the reason.
    """
    details = dict(graded.details)
    details["grades"] = [
        {"criterion": criterion.text, "grade": grade, "weight": criterion.weight}
        for criterion, grade in zip(criteria, graded.grades, strict=True)
    ]
    omitted = f" ({graded.cut} characters were not shown to the judge)" if graded.cut else ""
    if score is None:
        why = f"no score: the judge could not decide: {graded.reason or 'undecided'}{omitted}"
        return Verdict(None, None, why, metrics=graded.metrics, details=details, scorer=scorer)
    reason = (
        f"{graded.by}: {score:g} by {len(criteria)} criteria{f': {graded.reason}' if graded.reason else ''}{omitted}"
    )
    return Verdict(score, score >= success_at, reason, metrics=graded.metrics, details=details, scorer=scorer)
