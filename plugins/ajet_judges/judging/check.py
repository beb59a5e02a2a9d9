"""`ajet judge check`: measures how well an experiment's judge agrees with labelled examples.

Invariant: an example without a score counts neither as right nor as wrong. Accuracy and Cohen's kappa cover the decided
examples and state their number. An unreachable judge is an error, not a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.record.console import console, counted, format_number, make_table, print_line, printable
from ajet.record.intervals import Cells, cells_of, kappa, kappa_interval, wilson
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, open_judge
from ajet.task_reader.plain_values import BadRowError, read_json
from ajet.train.accounting import correlate

if TYPE_CHECKING:
    from ajet.config import Experiment

SHIPPED = Path(__file__).parents[1] / "model_judge" / "labelled.jsonl"
AT_ONCE = 16
SHOWN = 20
"""Maximum wrong verdicts on the screen."""
LABELS: Mapping[Any, bool] = {"correct": True, "incorrect": False, True: True, False: False}


@dataclass(frozen=True, slots=True)
class LabelledExample:
    """A question with an answer, a reference answer, and a label that says whether the answer is correct."""

    question: str
    answer: str
    reference: str
    label: bool
    order: bool = False
    """True if the example contains an order to the judge."""
    model: str = ""
    """Author model of the answer."""
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    """The judge's verdicts on labelled examples, and the agreement computed from them."""

    judge: str
    examples: Sequence[LabelledExample]
    verdicts: Sequence[Verdict]

    @property
    def decided(self) -> list[tuple[LabelledExample, bool]]:
        """Examples that the judge could decide, each with True for a verdict of correct."""
        return [(example, decision) for example, verdict in zip(self.examples, self.verdicts, strict=True)
                if (decision := _read_decision(verdict)) is not None]  # fmt: skip

    @property
    def wrong(self) -> list[tuple[LabelledExample, Verdict]]:
        """Wrongly judged examples, with their verdicts."""
        return [(example, verdict) for example, verdict in zip(self.examples, self.verdicts, strict=True)
                if (decision := _read_decision(verdict)) is not None and decision != example.label]  # fmt: skip

    @property
    def cells(self) -> Cells:
        """Count the decided examples by (label, verdict), the 2x2 table of Cohen's kappa."""
        return cells_of((example.label, decision) for example, decision in self.decided)

    @property
    def kappa_low(self) -> float | None:
        """Lower end of the confidence interval of Cohen's kappa. None without decided examples."""
        return kappa_interval(self.cells)[0] if self.decided else None


def read_labelled_examples(path: Path) -> list[LabelledExample]:
    """Read a JSON Lines file of labelled examples. Raises UserError for an unreadable file or line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else f"it is not UTF-8 ({error.reason})"
        raise UserError(
            f"The examples cannot be read: {reason}.",
            where=str(path),
            expected="JSON lines of {question, answer, reference, label}",
        ) from error
    labelled = [
        _parse_example(line, f"{path}:{line_number}") for line_number, line in enumerate(lines, 1) if line.strip()
    ]
    if not labelled:
        raise UserError("The file contains no examples.", where=str(path))
    return labelled


def check_judge(experiment: Experiment, examples: Sequence[LabelledExample]) -> JudgeCheck:
    """Score each example with the experiment's judge. Raises UserError without a judge, or if it fails."""
    judge = open_judge(experiment)
    if not judge.judges:
        raise UserError(
            "This experiment has no judge to check.",
            where=str(experiment.yaml_path),
            expected="task_judge.judges, or a judge of your own (task_judge.judge_protocol)",
        )
    try:
        return JudgeCheck(str(judge), examples, asyncio.run(_collect_verdicts(judge, examples)))
    finally:
        judge.let_go()


async def _collect_verdicts(judge: Judge, examples: Sequence[LabelledExample]) -> list[Verdict]:
    """Judge all examples, at most AT_ONCE at the same time, and return the verdicts in order. Raises UserError."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def judge_example(number: int, example: LabelledExample) -> Verdict:
        """Judge one example as if it were an attempt of a run."""
        task = Task(main_query=example.question, task_id=f"example-{number}", metadata={"answer": example.reference})
        workflow_task = WorkflowTask(task=task, task_id=task.task_id, tool_results=list(example.tools))
        async with slots:
            return await judge.verdict(
                workflow_task, WorkflowOutput(metadata={"final_answer": example.answer, "answer_schema": ""})
            )

    try:
        return list(
            await asyncio.gather(*(judge_example(*numbered_example) for numbered_example in enumerate(examples, 1)))
        )
    except BoundaryError as problem:
        raise UserError(f"The judge failed on an example: {problem}", where=str(judge)) from problem


def print_check(check: JudgeCheck) -> None:
    """Print agreement with the labels, wrong verdicts, biases, and the cost of the check."""

    decided, wrong = check.decided, check.wrong
    if wrong:
        table = make_table("label", "judged", "question", "answer", "why", texts=5)
        for example, verdict in wrong[:SHOWN]:
            table.add_row(
                _name_label(example.label), _name_label(not example.label), printable(example.question[:60]),
                printable(example.answer[:60]), printable(verdict.reason[:100]),
            )  # fmt: skip
        console.print(table)
        if len(wrong) > SHOWN:
            print_line(f"{len(wrong) - SHOWN} more are judged wrongly.")
    print_line(f"judge      {check.judge}")
    total, right_count = len(check.examples), len(decided) - len(wrong)
    print_line(f"decided    {len(decided)} of {counted(total, 'example')}; {total - len(decided)} without a score")
    if not decided:
        reason = next((verdict.reason for verdict in check.verdicts if verdict.reason), "")
        print_line(
            "the judge returned no score for any example (exit code 1)" + (f": {printable(reason)}" * bool(reason))
        )
    else:
        low, high = wilson(right_count / len(decided), len(decided))
        print_line(f"accuracy   {right_count / len(decided):.3f} ({low:.3f} to {high:.3f}) over decided examples")
        kappa_value, (low, high) = kappa(check.cells), kappa_interval(check.cells)
        print_line(f"kappa      {format_number(kappa_value)} ({low:.3f} to {high:.3f}, 95 %)")
        _, rejected, accepted, _ = check.cells
        print_line(
            f"wrong      {rejected} correct answers judged incorrect, {accepted} incorrect answers judged correct"
        )
    for name, text in _measure_biases(check):
        print_line(f"{name:<11}{text}")
    totals = {
        name: sum(verdict.metrics.get(name, 0.0) for verdict in check.verdicts) for name in ("calls", "cost", "refused")
    }
    seconds = sorted(verdict.metrics["seconds"] for verdict in check.verdicts if "seconds" in verdict.metrics)
    if seconds or totals["calls"]:
        median = f"; a reply takes {seconds[len(seconds) // 2]:.2f} s (median)" if seconds else ""
        cached = sum(verdict.metrics.get("cached", 0.0) == 1.0 for verdict in check.verdicts)
        cost = f", cost {totals['cost']:.4g}" if totals["cost"] else ""
        print_line(
            f"asked      {totals['calls']:.0f} calls{cost}, {totals['refused']:.0f} refused, {cached} cached{median}"
        )


def _measure_biases(check: JudgeCheck) -> list[tuple[str, str]]:
    """Return (name, text) of each bias that the examples can show.

    "orders": obeyed instructions inside judged texts. "length": preference for long answers. "own": preference for
    answers of the judging models, compared with other models' answers.
    """
    rows = []
    orders = [(example, decision) for example, decision in check.decided if example.order]
    if orders:
        obeyed = sum(decision != example.label for example, decision in orders)
        rows.append(("orders", f"{obeyed} of {len(orders)} instructions inside judged texts were obeyed"))
    errors = [
        (float(len(example.answer)), float(decision) - float(example.label)) for example, decision in check.decided
    ]
    if (length_correlation := correlate(errors)) is not None:
        rows.append(
            ("length", f"{length_correlation:+.2f}: correlation of an answer's length with a verdict that is too good")
        )
    judge_models = {vote["model"] for verdict in check.verdicts for vote in verdict.details.get("votes", ())}
    own_differences = [
        float(decision) - example.label for example, decision in check.decided if example.model in judge_models
    ]
    other_differences = [float(decision) - example.label for example, decision in check.decided
              if example.model and example.model not in judge_models]  # fmt: skip
    if own_differences and other_differences:
        own_bias = sum(own_differences) / len(own_differences) - sum(other_differences) / len(other_differences)
        rows.append(("own", f"{own_bias:+.2f}: bias towards its own answers, compared with other models' answers"))
    return rows


def _parse_example(line: str, where: str) -> LabelledExample:
    """Parse one line of the file. Raises UserError with the line's place."""
    try:
        row = read_json(line)
        label = LABELS[row["label"]]
        tools = row.get("tools", ())
        texts = [row["question"], row["answer"], row.get("reference", ""), row.get("model", ""), *tools]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a field is not text")
    except (BadRowError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"A line is not a labelled example ({type(error).__name__}: {error}).",
            where=where,
            expected='{"question": "…", "answer": "…", "reference": "…", "label": "correct" or "incorrect"}, '
            'optionally "order": true, "model": "…", "tools": ["…"]',
        ) from error
    question, answer, reference, model, *tool_results = texts
    order = bool(row.get("order", False))
    return LabelledExample(question, answer, reference, label, order=order, model=model, tools=tuple(tool_results))


def _read_decision(verdict: Verdict) -> bool | None:
    """Return True if a verdict says correct, False for incorrect, None without a score. 0.5 decides a bare reward."""
    if verdict.reward is None:
        return None
    return verdict.success if verdict.success is not None else verdict.reward >= 0.5


def _name_label(label: bool) -> str:
    """Return the word for a label."""
    return "correct" if label else "incorrect"
