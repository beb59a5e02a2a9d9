"""RubricsMaker: a model writes grading criteria from labelled examples, in the loop propose, grade, revise, select.

Invariants: criteria are proposed for each example, graded on it, and revised at most `max_epochs` times while their
grade differs from the label. Criteria that never agree are dropped. The rest is graded on all examples and selected by
agreement with the labels. Equal replies give equal rubrics. The reported agreement is measured with the same requests
as in a run.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.schema.errors import JudgeFailure
from ajet_judges.model_judge.judge import Entrant, ModelJudge, rank_entrants
from ajet_judges.model_judge.panel import JudgeReply
from ajet_judges.model_judge.prompt import JudgeQuestion
from ajet_judges.rubrics.criterion import Criterion, drop_repeats, number_criteria
from ajet_judges.rubrics.examples import RubricExample
from ajet_judges.rubrics.grading import AnswerGrader, Grade, weigh_grades
from ajet_judges.rubrics.labels import LabelAgreement, measure_agreement, measure_floor
from ajet_judges.rubrics.proposals import (
    CATEGORIES,
    CRITERIA,
    build_categorisation,
    build_proposal,
    build_revision,
    parse_categories_reply,
    parse_criteria_reply,
)

if TYPE_CHECKING:
    from ajet_judges.config import RubricsAutoGrader


T = TypeVar("T")
AT_ONCE = 16
NEAR = 0.25
"""Allowed distance of a grade from its label, as a share of the scale; allowed share of pairs in wrong order."""
GRADED_AT_ONCE = 10
"""Criteria graded by one question during trials."""


@dataclass(slots=True)
class MadeRubrics:
    """The selected criteria, with their agreement before and after revision."""

    criteria: list[Criterion]
    before: LabelAgreement
    """Agreement of the first proposals."""
    after: LabelAgreement
    """Agreement of the selected criteria."""
    held_out: int
    """Number of held-out examples of both measurements; 0: measured on the examples used for writing."""
    stopped: str
    history: list[dict[str, float]]
    dropped: int
    """Number of written criteria that were not selected."""
    calls: int
    cost: float


@dataclass(slots=True)
class RubricsMaker:
    """Writes criteria from labelled examples with the models of a grader."""

    grader: AnswerGrader
    settings: RubricsAutoGrader
    say: Callable[[str], None] = lambda text: None
    seed: int = 0
    calls: int = 0
    cost: float = 0.0
    _grades: dict[tuple[str, str, str], Grade] = field(default_factory=dict)
    """(question, answer, criterion) -> grade."""

    @property
    def judge(self) -> ModelJudge:
        """The model judge that sends the requests."""
        return self.grader.judge

    @property
    def listwise(self) -> bool:
        """True if an example is several answers ranked by people, instead of one labelled answer."""
        return self.settings.grader_mode == "listwise"

    async def make_rubrics(
        self, examples: Sequence[RubricExample], held_out: Sequence[RubricExample] = ()
    ) -> MadeRubrics:
        """Write, grade and select criteria until a stop rule applies.

        Args:
            examples: examples to write criteria from.
            held_out: examples to measure the result on; empty to measure on `examples`.

        Raises:
            JudgeFailure: no model is reachable, or no criterion agrees with the labels better than a constant grade.
        """
        settings, first_proposals = self.settings, list[Criterion]()
        order = list(examples)
        random.Random(self.seed).shuffle(order)
        floor = measure_floor(examples, listwise=self.listwise)
        stops = StopRules(settings.patience, settings.min_increment_threshold, settings.max_iterations,
                          settings.max_total_rubrics, floor)  # fmt: skip
        chosen_criteria: list[Criterion] = []
        used_examples = proposed = 0

        def compute_agreement(criteria: Sequence[Criterion]) -> float:
            """Return the agreement of these criteria with the labels of all examples, from 0 to 1."""
            return self._measure_agreement(examples, self._score_answers(examples, criteria)).share

        while not (stopped := stops.reason(len(chosen_criteria), len(order) - used_examples)):
            batch = order[used_examples : used_examples + settings.batch_size]
            used_examples += len(batch)
            written = await _gather_all(self._write_for_example(example) for example in batch)
            first_proposals += [criterion for first, _ in written for criterion in first]
            revised = [criterion for _, final in written for criterion in final]
            proposed += len(revised)
            new_criteria = drop_repeats(revised, chosen_criteria)
            await self._grade_new_criteria(examples, new_criteria)
            chosen_criteria = extend_criteria(
                chosen_criteria, new_criteria, compute_agreement, floor=floor,
                most_new=settings.mcr_batch_size, limit=settings.max_total_rubrics,
            )  # fmt: skip
            agreement = compute_agreement(chosen_criteria) if chosen_criteria else floor
            stops.note_iteration(agreement, proposed=len(revised), chosen=len(chosen_criteria))
            self.say(f"iteration {stops.iterations}: {used_examples} of {len(order)} examples, "
                     f"{len(revised)} criteria written, "
                     f"{len(chosen_criteria)} chosen, agreement {agreement:.3f}")  # fmt: skip
        if not chosen_criteria:
            raise JudgeFailure(
                f"none of {proposed} criteria written by {self.judge} agrees with the labels better than a "
                f"constant grade ({floor:.3f})"
            )
        chosen_criteria = drop_idle_criteria(chosen_criteria, compute_agreement)
        if settings.enable_categorization:
            chosen_criteria = await self._sort_into_categories(chosen_criteria)
        measured_examples = list(held_out) or list(examples)
        before = await self._measure_with_judge(
            measured_examples, drop_repeats(first_proposals)[: settings.max_total_rubrics]
        )
        after = await self._measure_with_judge(measured_examples, chosen_criteria)
        return MadeRubrics(
            chosen_criteria, before, after, len(held_out), stopped, [dict(iteration) for iteration in stops.history],
            proposed - len(chosen_criteria), self.calls, self.cost,
        )  # fmt: skip

    async def _write_for_example(self, example: RubricExample) -> tuple[list[Criterion], list[Criterion]]:
        """Propose criteria for one example, and revise them until their grade equals its label.

        Returns:
            The first proposals, and the criteria that agree (empty if none do after `max_epochs` revisions).
        """
        settings, scale, longest = self.settings, self.grader.scale, self.judge.max_chars
        count, language = settings.query_specific_generate_number, settings.language
        criteria = await self._request_criteria(build_proposal(example, scale, count, language, longest), count)
        first_proposals = criteria
        for epoch in range(settings.max_epochs + 1):
            await self._grade_new_criteria([example], criteria)
            if not criteria or self._is_in_agreement(example, criteria):
                return first_proposals, criteria
            if epoch < settings.max_epochs:
                grades = [
                    [self._grades[_make_key(example, answer.text, criterion)] for criterion in criteria]
                    for answer in example.answers
                ]
                criteria = await self._request_criteria(
                    build_revision(example, scale, criteria, grades, language, longest), count
                )
        return first_proposals, []

    async def _request_criteria(self, question: JudgeQuestion, count: int) -> list[Criterion]:
        """Request `count` criteria, and return them without near duplicates; [] if no reply is readable."""
        written = await self._request_parsed(question, CRITERIA, lambda text: parse_criteria_reply(text, count))
        return drop_repeats(written or [])

    async def _request_parsed(
        self, question: JudgeQuestion, schema: dict[str, Any], parse: Callable[[str], T]
    ) -> T | None:
        """Return the parsed reply to a question, with retries. None: all replies are unreadable.

        Args:
            schema: JSON schema of the reply.
            parse: parses a reply, or raises UnreadableReplyError.
        """
        for attempt in range(self.settings.max_retries + 1):
            reply: JudgeReply[T] = await self.judge.panel.ask(
                question,
                schema,
                parse,
                draw=attempt,
                # A retry at temperature 0 would get the same reply.
                temperature=self.judge.temperature if attempt == 0 else 1.0,
            )
            self.calls, self.cost = self.calls + reply.calls, self.cost + reply.cost
            if reply.value is not None:
                return reply.value
        return None

    async def _grade_new_criteria(self, examples: Sequence[RubricExample], criteria: Sequence[Criterion]) -> None:
        """Grade all answers of the examples by those criteria that have no grade yet."""

        async def grade_batch(example: RubricExample, answer: str, batch: Sequence[Criterion]) -> None:
            """Grade one answer by a batch of criteria, and store the grades."""
            graded = await self._grade_answer(example, answer, batch)
            for criterion, grade in zip(batch, graded, strict=True):
                self._grades[_make_key(example, answer, criterion)] = grade

        coroutines = []
        for example in examples:
            for answer in example.answers:
                ungraded = [
                    criterion
                    for criterion in criteria
                    if _make_key(example, answer.text, criterion) not in self._grades
                ]
                for start in range(0, len(ungraded), GRADED_AT_ONCE):
                    coroutines.append(grade_batch(example, answer.text, ungraded[start : start + GRADED_AT_ONCE]))
        await _gather_all(coroutines)

    async def _grade_answer(self, example: RubricExample, answer: str, criteria: Sequence[Criterion]) -> list[Grade]:
        """Grade an answer by all criteria in one request, and count its calls and cost. Raises JudgeFailure."""
        graded = await self.grader.grade_answer(example.query, answer, criteria, example.reference)
        self.calls += int(graded.metrics["calls"])
        self.cost += graded.metrics["cost"]
        return graded.grades

    def _is_in_agreement(self, example: RubricExample, criteria: Sequence[Criterion]) -> bool:
        """Return True if the criteria's score of the example differs from its label by at most NEAR.

        Listwise: at most the share NEAR of the pairs of answers is in the wrong order.
        """
        scores = self._score_answers([example], criteria)
        if self.listwise:
            return self._measure_agreement([example], scores).share >= 1 - NEAR
        score = scores[0][0]
        return score is not None and abs(score - example.answers[0].label) <= NEAR

    def _score_answers(
        self, examples: Sequence[RubricExample], criteria: Sequence[Criterion]
    ) -> list[list[float | None]]:
        """Return weighted scores by these criteria, per example and answer, from stored grades."""
        return [
            [
                weigh_grades(
                    [self._grades[_make_key(example, answer.text, criterion)] for criterion in criteria],
                    criteria,
                    strict=False,
                )
                for answer in example.answers
            ]
            for example in examples
        ]

    def _measure_agreement(
        self, examples: Sequence[RubricExample], scores: Sequence[Sequence[float | None]]
    ) -> LabelAgreement:
        """Return the agreement of the scores with the examples' labels."""
        return measure_agreement(examples, scores, listwise=self.listwise, mark=self.settings.success_threshold)

    async def _measure_with_judge(
        self, examples: Sequence[RubricExample], criteria: Sequence[Criterion]
    ) -> LabelAgreement:
        """Request new grades with all criteria in one request, as in a training run, and return the agreement."""

        async def score_example(example: RubricExample) -> list[float | None]:
            """Return one score from 0 to 1 per answer of the example; None without a score."""
            if not criteria:
                return [None for _ in example.answers]
            if self.listwise:
                entrants = [Entrant(answer.text) for answer in example.answers]
                verdicts = await rank_entrants(
                    self.judge, example.query, example.reference, entrants, example.query, number_criteria(criteria)
                )
                self.calls += round(sum(verdict.metrics["calls"] for verdict in verdicts))
                self.cost += sum(verdict.metrics["cost"] for verdict in verdicts)
                return [verdict.reward for verdict in verdicts]
            return [
                weigh_grades(
                    await self._grade_answer(example, example.answers[0].text, criteria), criteria, strict=False
                )
            ]

        return self._measure_agreement(examples, await _gather_all(score_example(example) for example in examples))

    async def _sort_into_categories(self, criteria: Sequence[Criterion]) -> list[Criterion]:
        """Let the model sort the criteria into categories, and return them with their category.

        Without a readable reply the criteria keep none, and a message says so.
        """
        limit = self.settings.categories_number
        prompt = build_categorisation(criteria, limit, self.settings.language)
        categories = await self._request_parsed(
            prompt, CATEGORIES, lambda text: parse_categories_reply(text, len(criteria), limit)
        )
        if categories is None:
            self.say("the criteria have no categories: no reply could be read")
            return list(criteria)
        return [replace(criteria[index], category=name) for name, indexes in categories for index in indexes]


def count_most_calls(
    settings: RubricsAutoGrader, examples: Sequence[RubricExample], held_out: Sequence[RubricExample], votes: int
) -> int:
    """Return the largest possible number of model requests for writing the rubrics.

    Retries after unreadable replies are not counted.

    Args:
        votes: requests per graded answer.
    """
    example_count = len(examples)
    answer_count = sum(len(example.answers) for example in examples)
    iterations = min(settings.max_iterations, math.ceil(example_count / settings.batch_size))
    used_examples = min(example_count, iterations * settings.batch_size)
    proposals = used_examples * (1 + settings.max_epochs)  # the first proposal, then at most `max_epochs` revisions
    answers_per_example = math.ceil(answer_count / max(example_count, 1))
    calls_per_answer = math.ceil(settings.query_specific_generate_number / GRADED_AT_ONCE)
    trial_grades = answers_per_example * proposals * calls_per_answer
    calls_per_batch = math.ceil(settings.batch_size * settings.query_specific_generate_number / GRADED_AT_ONCE)
    selection_grades = iterations * answer_count * calls_per_batch
    measured = held_out or examples
    is_listwise = settings.grader_mode == "listwise"  # one request grades all answers of an example
    measurement = len(measured) if is_listwise else sum(len(example.answers) for example in measured)
    grades = trial_grades + selection_grades + 2 * measurement  # the criteria before and after revision
    return proposals + votes * grades + settings.enable_categorization


def _make_key(example: RubricExample, answer: str, criterion: Criterion) -> tuple[str, str, str]:
    """Return the key of a stored grade: question, answer and criterion."""
    return example.query, answer, criterion.text


async def _gather_all(work: Any) -> list[Any]:
    """Run coroutines, at most AT_ONCE at a time, and return their results in order.

    The first failure cancels the rest.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def run_in_slot(coroutine: Any) -> Any:
        async with slots:
            return await coroutine

    tasks = [asyncio.ensure_future(run_in_slot(coroutine)) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


# Select criteria by agreement with labels, and decide when to stop.
# Invariant: pure functions. A criterion is added only if it improves the agreement, and dropped if agreement stays
# equal without it; so agreement never falls. Selection needs no request: all grades are known.
AgreementFunction = Callable[[Sequence[Criterion]], float]
"""Agreement of labels with grades by these criteria alone."""
LEAST = 1e-9


def extend_criteria(
    chosen: Sequence[Criterion],
    fresh: Sequence[Criterion],
    agrees: AgreementFunction,
    *,
    floor: float,
    most_new: int,
    limit: int,
) -> list[Criterion]:
    """Add criteria to `chosen` one by one, always the one that improves agreement most (greedy selection).

    Args:
        fresh: candidates.
        agrees: agreement of a list of criteria with the labels.
        floor: agreement of the best constant grade, to be exceeded.
        most_new: largest number of added criteria.
        limit: largest number of criteria in total.
    """
    extended, candidates = list(chosen), list(fresh)
    best = agrees(extended) if extended else floor
    for _ in range(most_new):
        if len(extended) >= limit or not candidates:
            break
        # The negative index breaks ties in favour of the earlier criterion, so equal replies give equal rubrics.
        value, index = max((agrees([*extended, candidate]), -index) for index, candidate in enumerate(candidates))
        if value <= best + LEAST:
            break
        best = value
        extended.append(candidates.pop(-index))
    return extended


def drop_idle_criteria(chosen: Sequence[Criterion], agrees: AgreementFunction) -> list[Criterion]:
    """Remove criteria one by one, always the one that matters least, while the agreement does not fall.

    At least one remains.
    """
    remaining = list(chosen)
    while len(remaining) > 1:
        agreement, index = max(
            (agrees([*remaining[:index], *remaining[index + 1 :]]), index) for index in range(len(remaining))
        )
        if agreement < agrees(remaining) - LEAST:
            break
        del remaining[index]
    return remaining


@dataclass(slots=True)
class StopRules:
    """Decides when the writing of rubrics stops.

    Call `reason` before each iteration, and `note_iteration` after it.
    """

    patience: int
    min_increment: float
    max_iterations: int
    max_total: int
    best: float  # initially the floor
    iterations: int = 0
    in_vain: int = 0
    """Consecutive iterations with less improvement than `min_increment`."""
    history: list[Mapping[str, float]] = field(default_factory=list)

    def reason(self, total: int, left: int) -> str:
        """Return why to stop now, or "" to continue.

        Args:
            total: number of selected criteria.
            left: number of unused examples.
        """
        if self.in_vain >= self.patience:
            return f"the last {self.in_vain} iterations gained less than {self.min_increment:g}"
        if self.iterations >= self.max_iterations:
            return f"max_iterations: {self.iterations}"
        if total >= self.max_total:
            return f"max_total_rubrics: {total}"
        return "" if left else "all examples are used"

    def note_iteration(self, value: float, *, proposed: int, chosen: int) -> None:
        """Record the agreement that an iteration reached.

        Args:
            value: agreement of the selected criteria.
            proposed: number of criteria written in the iteration.
            chosen: number of selected criteria.
        """
        self.in_vain = self.in_vain + 1 if value - self.best < self.min_increment else 0
        self.best = max(self.best, value)
        self.iterations += 1
        self.history.append({"proposed": proposed, "kept": chosen, "agreement": value})
