"""Labelled examples for rubrics: `{query, answer, score}`, or ranked candidates.

Invariant: every example has a label on the configured scale; a bad example raises an error with its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_judge.extraction import answer_text
from ajet.task_reader import open_reader
from ajet_judges.config import JudgeKeys
from ajet_judges.model_judge.judge import format_question
from ajet_judges.rubrics.grading import GradeScale

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet_judges.config import RubricsAutoGrader

KEY = "ajet.task_judge.rubrics_auto_grader"
FORMS = {
    "pointwise": '{"query": "…", "answer": "…", "score": NUMBER}',
    "listwise": '{"query": "…", "candidates": [{"answer": "…", "rank": 1}, …]}, where rank 1 is the best',
}


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer with its label, written by people."""

    text: str
    label: float
    """Pointwise: position on the scale, 0 to 1. Listwise: higher is better."""


@dataclass(frozen=True, slots=True)
class RubricExample:
    """A question with one labelled answer, or with several answers ranked by people."""

    query: str
    answers: tuple[LabelledAnswer, ...]
    reference: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return JSON values, from which the digest of the rubrics' version is computed."""
        return asdict(self)


def get_field(task: Task, name: str) -> Any:
    """Return a field of the task, or of its data row. None if absent."""
    task_field = getattr(task, name, None) if name in Task.model_fields else None
    return task.metadata.get(name) if task_field in (None, "", []) else task_field


def get_query(task: Task, name: str) -> str:
    """Return the configured question field of a task, or else the task's query."""
    return answer_text(get_field(task, name)) or format_question(task.main_query, task.init_messages)


def read_examples(experiment: Experiment) -> tuple[list[RubricExample], list[RubricExample]]:
    """Read the labelled examples that `rubrics_auto_grader` configures.

    Returns:
        Examples to write rubrics from, and held-out examples.

    Raises:
        TaskError: no example file is configured, or an example is invalid.
        UserError: the reader named by `input_data_type` cannot read its data.
    """
    grader = JudgeKeys.of(experiment.ajet).rubrics_auto_grader
    settings = experiment.ajet.model_copy(deep=True)
    settings.task_reader.type = grader.input_data_type
    settings.task_reader.jsonl_dataset_file = grader.jsonl_dataset_file
    reader = open_reader(replace(experiment, ajet=settings))
    if grader.input_data_type == "jsonl_dataset_file" and not reader.has("train"):
        key = f"{KEY}.jsonl_dataset_file.training.file_path"
        raise TaskError(
            "Rubrics need labelled examples, but no file of examples is set.",
            where=key,
            expected=f"a JSON Lines file with lines {FORMS[grader.grader_mode]}",
            do=f"set {key}",
        )
    # Any other reader reads the run's own data: the run's validation tasks are no held-out examples.
    has_separate_file = grader.input_data_type == "jsonl_dataset_file"
    held_out = reader.tasks("validation") if has_separate_file and reader.has("validation") else []
    return _parse_examples(reader.tasks("train"), grader), _parse_examples(held_out, grader)


def _parse_examples(tasks: Sequence[Task], grader: RubricsAutoGrader) -> list[RubricExample]:
    """Convert data rows to examples. Raises TaskError that names the first unusable row."""
    examples = []
    for task in tasks:
        try:
            examples.append(parse_example(task, grader))
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise TaskError(
                f"An example cannot be used: {problem}.",
                where=f"example {task.task_id}",
                expected=FORMS[grader.grader_mode],
                do=f"correct the row, or the settings {KEY}.{{query_field, answer_field, reference_field, "
                "min_score, max_score}",
            ) from None
    return examples


def parse_example(task: Task, grader: RubricsAutoGrader) -> RubricExample:
    """Convert a data row to an example. Raises ValueError.

    The answer is in `answer_field` and the reference in `reference_field`. Without `answer_field` the answer is in
    `answer`, as in AgentJet's rows.
    """
    row, query = task.metadata, get_query(task, grader.query_field)
    if not query.strip():
        raise ValueError("it has no query")
    if grader.grader_mode == "listwise":
        candidates = row.get("candidates")
        if not isinstance(candidates, list) or len(candidates) < 2:
            raise ValueError("`candidates` is not a list of at least two")
        answers = tuple(
            # The rank is negated, because a higher label is better.
            LabelledAnswer(answer_text(candidate["answer"]), -_parse_number(candidate.get("rank"), "rank"))
            for candidate in candidates
        )
        if len({answer.label for answer in answers}) < 2:
            raise ValueError("all candidates of the row have the same rank, so none is better than another")
        return RubricExample(query, answers, answer_text(row.get(grader.reference_field)))
    scale, score = GradeScale(grader.min_score, grader.max_score), _parse_number(row.get("score"), "score")
    if not scale.low <= score <= scale.high:
        raise ValueError(f"its score is {score:g}, outside the scale from {scale.low:g} to {scale.high:g}")
    graded_answer = row.get(grader.answer_field)
    reference = None if graded_answer is None else row.get(grader.reference_field)
    answer = row.get("answer") if graded_answer is None else graded_answer
    if answer is None:
        raise ValueError("it has no answer")
    return RubricExample(query, (LabelledAnswer(answer_text(answer), scale.share(score)),), answer_text(reference))


def _parse_number(value: Any, name: str) -> float:
    """Return a number of the row. Raises ValueError that names the field if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"its {name} is {value!r:.60}")
    return float(value)
