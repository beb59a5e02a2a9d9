"""Reports an evaluation as a table on the screen, JSON, rows for other programs, and a picture.

Invariant: all of them show the same scores. Each rate states the number of tasks, and each difference the size that
chance alone makes possible.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ajet.commands.evaluation import judge_comparison
from ajet.commands.evaluation.judged import YAML
from ajet.commands.evaluation.play import EvaluationResult, ModelScores
from ajet.record.attempts import TAG_KEYS
from ajet.record.console import console, counted, format_number, make_table, print_line, printable
from ajet.record.intervals import plus_minus
from ajet.record.scores import Scores, TaskRate
from ajet.schema.errors import MissingExtraError, UserError

NAMED = 8
"""Maximum number of flipped tasks named in a line."""
LOST_AT = {"engine": "the model's server or engine", "judge": "the judge", "ajet": "ajet itself"}
"""Boundaries in words. Other boundaries are words already."""
COLUMNS = (
    "model", "task_id", "order", "repeat", "reward", "success", "status", "failure", "reason", "left_out", "tokens",
    "seconds", "tags", "question", "uuid", "record", "scorer",
)  # fmt: skip


def print_report(result: EvaluationResult, keys: Sequence[str] = TAG_KEYS) -> None:
    """Print the scores by model and tag, the comparisons with the first model, remarks, and the records' folders.

    Args:
        keys: Metadata keys of the tags.
    """
    all_scores = [
        scores for model_scores in result.evaluated for scores in (model_scores.scores, *model_scores.judged.values())
    ]
    console.print(_describe_played(result), soft_wrap=True)
    columns = _choose_columns(all_scores)
    table = make_table()
    table.add_column(
        "model", overflow="fold", min_width=min(24, max(len(scored.model.label) for scored in result.evaluated))
    )
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for model_scores in result.evaluated:
        table.add_row(printable(model_scores.model.label), *_format_cells(model_scores.scores, columns), style="bold")
        for tag, scores in model_scores.scores.group_by_tag(keys).items():
            table.add_row(f"  {printable(tag)}", *_format_cells(scores, columns), style="dim")
        by_scorer = model_scores.scores.group_by_scorer()
        for scorer, scores in by_scorer.items() if len(by_scorer) > 1 else ():
            table.add_row(f"  scorer {printable(scorer)}", *_format_cells(scores, columns), style="dim")
        for judge, scores in model_scores.judged.items():
            table.add_row(f"  {printable(_short_name(judge))}", *_format_cells(scores, columns), style="dim")
    console.print(table)
    if keys != TAG_KEYS and not any(model_scores.scores.group_by_tag(keys) for model_scores in result.evaluated):
        text = f"No task has the key {' or '.join(keys)} in its metadata, by which the scores should be split."
        print_line(printable(text), style="yellow")
    _show_parts(result)
    if (judges := result.compare_by_judge()) is not None:
        judge_comparison.print_comparison(judges)
    for line in _list_remarks(result):
        print_line(line)
    for after, compared in result.compare_with_first():
        before = result.evaluated[0].model.label
        style = ("green" if compared.difference > 0 else "red") if compared.is_beyond_noise else ""
        text = (
            f"{after.model.label} compared with {before}: {compared.describe_difference()}; {compared.describe_noise()}"
        )
        print_line(printable(text), style=style)
        for change, tasks in (("gained", compared.gained), ("lost", compared.lost)):
            if tasks:
                task_list = ", ".join(tasks[:NAMED]) + (f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else "")
                print_line(f"  {change} {counted(len(tasks), 'task')}: {printable(task_list)}")
        if not compared.gained and not compared.lost:
            console.print("  no task changed between solved and unsolved", soft_wrap=True)
    for model_scores in result.evaluated:
        print_line(f"Record of {printable(model_scores.model.label)}: {model_scores.folder}")


def _show_parts(result: EvaluationResult) -> None:
    """Print the mean score of each scorer by model, if tasks were scored by several."""
    by_model = [
        (model_scores.model.label, model_scores.scores.average_by_scorer()) for model_scores in result.evaluated
    ]
    if max((len(scorers) for _, scorers in by_model), default=0) < 2:
        return
    table = make_table("model", "scorer", "mean", "scored", texts=2)
    for label, scorers in by_model:
        for scorer, (mean, scored, attempts) in scorers.items():
            cells = (printable(label), printable(scorer), format_number(mean), f"{scored}/{attempts}")
            table.add_row(*cells, style="dim")
    console.print(table)


def to_json(result: EvaluationResult, keys: Sequence[str] = TAG_KEYS) -> dict[str, Any]:
    """Return the result as JSON values.

    Args:
        keys: Metadata keys of the tags.
    """
    return {
        "tasks": result.tasks,
        "repeats": result.repeats,
        "sampling": result.sampling,
        "known_from_training": None if result.known is None else asdict(result.known),
        "models": [_scores_to_json(model_scores, keys) for model_scores in result.evaluated],
        "judges": None if (judges := result.compare_by_judge()) is None else asdict(judges),
        "comparisons": [
            {"before": result.evaluated[0].model.label, "after": model_scores.model.label}
            | asdict(compared)
            | {"beyond_noise": compared.is_beyond_noise}
            for model_scores, compared in result.compare_with_first()
        ],
    }


def list_columns(result: EvaluationResult) -> list[str]:
    """Return the names of the columns of `list_rows`: the fixed ones, then two for each further judge."""
    judges = [_short_name(judge) for judge in result.evaluated[0].judged]
    return [*COLUMNS, *(f"{quantity} by {name}" for quantity in ("reward", "success") for name in judges)]


def list_rows(result: EvaluationResult, keys: Sequence[str] = TAG_KEYS) -> Iterator[dict[str, Any]]:
    """Yield one row for each attempt of each model. All rows have the same columns.

    Args:
        keys: Metadata keys of the tags.
    """
    for model_scores in result.evaluated:
        for index, attempt in enumerate(model_scores.scores.attempts):
            attempts_by_judge = {
                _short_name(judge): scores.attempts[index] for judge, scores in model_scores.judged.items()
            }
            yield {
                **{name: getattr(attempt, name, None) for name in COLUMNS},
                "model": model_scores.model.label,
                "task_id": attempt.task,
                "success": attempt.success if attempt.judged else None,
                "tags": ";".join(attempt.tags(keys)),
                "record": str(model_scores.folder),
                **{f"reward by {name}": judged.reward for name, judged in attempts_by_judge.items()},
                **{
                    f"success by {name}": judged.success if judged.judged else None
                    for name, judged in attempts_by_judge.items()
                },
            }


def write_csv(result: EvaluationResult, file: Path, keys: Sequence[str] = TAG_KEYS) -> None:
    """Write a row per attempt as CSV. Raises UserError if the file cannot be written."""
    try:
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list_columns(result))
            writer.writeheader()
            writer.writerows(list_rows(result, keys))
    except OSError as error:
        raise _refuse_file(file, "--csv", error) from error


def write_parquet(result: EvaluationResult, file: Path, keys: Sequence[str] = TAG_KEYS) -> None:
    """Write a row per attempt as Parquet with typed columns. Raises UserError if the file cannot be written."""
    import pyarrow
    from pyarrow import parquet

    column_types = {
        **dict.fromkeys(COLUMNS, pyarrow.string()),
        **{name: pyarrow.float64() for name in list_columns(result) if name.startswith("reward by ")},
        **{name: pyarrow.bool_() for name in list_columns(result) if name.startswith("success by ")},
        **dict.fromkeys(("order", "repeat", "tokens"), pyarrow.int64()),
        **dict.fromkeys(("reward", "seconds"), pyarrow.float64()),
        **dict.fromkeys(("success", "left_out"), pyarrow.bool_()),
    }
    table = pyarrow.Table.from_pylist(list(list_rows(result, keys)), schema=pyarrow.schema(list(column_types.items())))
    try:
        parquet.write_table(table, file)
    except OSError as error:
        raise _refuse_file(file, "--parquet", error) from error


def draw_report(result: EvaluationResult, file: Path) -> None:
    """Draw each model's pass rates, or else mean reward, as bars with 95 % intervals, into an .svg, .png or .pdf.

    Raises:
        UserError: The file cannot be written, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "local", needed_for="--picture") from None
    ks = [
        k
        for k in result.evaluated[0].scores.ks()
        if any(model_scores.scores.pass_rate(k) for model_scores in result.evaluated)
    ]
    names = [f"pass@{k}" for k in ks] or ["mean reward"]
    figure = Figure(figsize=(max(4.8, 1.6 * len(names) * len(result.evaluated)), 3.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(result.evaluated)
    for index, model_scores in enumerate(result.evaluated):
        positions = [group + index * width for group in range(len(names))]
        bars = [_make_rate_bar(model_scores.scores.pass_rate(k)) for k in ks] or [_make_reward_bar(model_scores.scores)]
        values = [value for value, _, _ in bars]
        errors = [[low for _, low, _ in bars], [high for _, _, high in bars]]
        bar_container = axes.bar(
            positions, values, width * 0.92, yerr=errors, capsize=3, label=model_scores.model.label
        )
        axes.bar_label(bar_container, [f"{value:.2f}" for value in values], fontsize=8, padding=2)
    axes.set_xticks([group + 0.4 - width / 2 for group in range(len(names))], names)
    if ks:
        axes.set_ylim(0, 1.05)
    axes.set_title(f"{_describe_played(result)}; 95 % intervals", loc="left", fontsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower left")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:  # ValueError: matplotlib does not know the format
        raise _refuse_file(file, "--picture", error) from error


def _describe_played(result: EvaluationResult) -> str:
    """Return what was played, as text: number of tasks and attempts, and how replies were sampled."""
    return f"{counted(result.tasks, 'task')}, {counted(result.repeats, 'attempt')} each, {result.sampling}"


def _short_name(reference: str) -> str:
    """Return a judge's name for columns: the name in its reference, or the stem of its YAML."""
    return Path(reference).stem if reference.endswith(YAML) else re.split("->|:", reference)[-1].strip()


def _choose_columns(everything: Sequence[Scores]) -> list[str]:
    """Return the columns of the table of scores.

    The reward has one unless it equals success, and failures have one if there are any.

    Args:
        everything: Scores of all rows.
    """
    pass_ks = [k for k in everything[0].ks() if any(scores.pass_rate(k) for scores in everything)]
    shows_reward = any(not scores.has_success_verdicts or scores.solved != scores.rewards for scores in everything)
    has_failures = any(scores.failed for scores in everything)
    return [
        *(f"pass@{k}" for k in pass_ks),
        *["reward"] * shows_reward,
        "scored",
        *["failed"] * has_failures,
        "tokens",
        "s",
    ]


def _format_cells(scores: Scores, columns: Sequence[str]) -> list[str]:
    """Return the cells of one row of scores, in the order of the columns."""
    counted_attempts = [attempt for attempt in scores.attempts if not attempt.left_out]
    cells = {
        "reward": format_number(scores.reward) + plus_minus(scores.reward_error, ".2g"),
        "scored": f"{scores.scored}/{len(scores.attempts)}",
        "failed": str(scores.failed),
        "tokens": f"{sum(attempt.tokens for attempt in counted_attempts) / max(1, len(counted_attempts)):.0f}",
        "s": f"{sum(attempt.seconds for attempt in counted_attempts) / max(1, len(counted_attempts)):.1f}",
    }
    pass_columns = [name for name in columns if name.startswith("pass@")]
    for name in pass_columns:  # only the first and the last have an interval, to limit the line's length
        rate = scores.pass_rate(int(name.removeprefix("pass@")))
        has_interval = name in (pass_columns[0], pass_columns[-1])
        cells[name] = "–" if rate is None else str(rate) if has_interval else f"{rate.value:.1%}"
    return [cells[name] for name in columns]


def _list_remarks(result: EvaluationResult) -> Iterator[str]:
    """Yield sentences on overlap with training tasks, failures, missing attempts, cut replies and missing scores."""
    if result.known is not None and (text := result.known.words()):
        yield f"Overlap with the training tasks: {printable(text)}"
    for model_scores in result.evaluated:
        scores, label = model_scores.scores, printable(model_scores.model.label)
        if scores.failed or scores.unscored:
            reward_note = f"a failed attempt counts as unsolved, with reward {scores.lowest:g}"
            counts = Counter(
                attempt.failure.partition(":")[0]
                for attempt in scores.attempts
                if attempt.failure and not attempt.left_out
            )
            boundaries = (
                f" ({', '.join(f'{count} {boundary}' for boundary, count in counts.most_common())})" if counts else ""
            )
            yield f"{label}: {scores.failed} failed{boundaries}, {scores.unscored} with no score; {reward_note}"
        if scores.left_out:
            cause, _ = Counter(attempt.failure for attempt in scores.attempts if attempt.left_out).most_common(1)[0]
            counts = Counter(
                attempt.failure.partition(":")[0] or "stopped" for attempt in scores.attempts if attempt.left_out
            )
            missing = ", ".join(
                f"{count} at {LOST_AT.get(boundary, boundary)}" for boundary, count in counts.most_common()
            )
            yield (
                f"{label}: {counted(scores.left_out, 'attempt')} left out, because something other than the "
                f"model failed ({missing}); correct the cause, then the same command repeats them; most frequent: "
                f"{printable(cause)[:300]}"
            )
        if (dropped_count := result.tasks - len({attempt.task for attempt in scores.attempts})) > 0:
            yield f"{label}: {counted(dropped_count, 'task')} not run: longer than data.max_prompt_length"
        if cut_count := sum(attempt.cut for attempt in scores.attempts):
            replies = sum(attempt.replies for attempt in scores.attempts)
            yield (
                f"{label}: {cut_count} of {replies} replies cut short by a token limit (max_tokens of the request, "
                "rollout.max_response_length_in_one_turn or rollout.max_model_len)"
            )
        if not scores.has_success_verdicts and scores.scored:
            yield f"{label}: no pass rate: neither the workflow nor the judge reports success"
    for unscored in result.list_unscored():
        yield f"{printable(unscored)}: no result: no attempt was scored (exit code 1)"
    if any(
        model_scores.scores.failed == len(model_scores.scores.attempts)
        for model_scores in result.evaluated
        if model_scores.scores.attempts
    ):
        all_failed = next(scored for scored in result.evaluated if scored.scores.failed == len(scored.scores.attempts))
        yield f"All attempts failed; the first one: {printable(all_failed.scores.attempts[0].failure)[:300]}"


def _scores_to_json(each: ModelScores, keys: Sequence[str]) -> dict[str, Any]:
    """Return the scores of one model as JSON values: in total, and by judge, tag and scorer."""
    return {
        "model": each.model.label,
        "record": str(each.folder),
        **_list_score_numbers(each.scores),
        "judges": {judge: _list_score_numbers(scores) for judge, scores in each.judged.items()},
        "tags": {tag: _list_score_numbers(scores) for tag, scores in each.scores.group_by_tag(keys).items()},
        "scorers": {name: _list_score_numbers(scores) for name, scores in each.scores.group_by_scorer().items()},
        "scorer_means": {
            name: {"mean": mean, "scored": scored, "of": attempts}
            for name, (mean, scored, attempts) in each.scores.average_by_scorer().items()
        },
    }


def _list_score_numbers(scores: Scores) -> dict[str, Any]:
    """Return the numbers of one row of scores as JSON values."""
    passes = {f"pass@{k}": asdict(rate) for k in scores.ks() if (rate := scores.pass_rate(k)) is not None}
    return {
        **passes,
        "reward": scores.reward,
        "reward_error": scores.reward_error,
        "tasks": len(scores.by_task),
        "attempts": len(scores.attempts),
        "scored": scores.scored,
        "failed": scores.failed,
        "no_score": scores.unscored,
        "left_out": scores.left_out,
    }


def _make_rate_bar(rate: TaskRate | None) -> tuple[float, float, float]:
    """Return (height, error below, error above) of the bar for a rate. A missing rate has height 0."""
    return (0.0, 0.0, 0.0) if rate is None else (rate.value, rate.value - rate.low, rate.high - rate.value)


def _make_reward_bar(scores: Scores) -> tuple[float, float, float]:
    """Return (height, error below, error above) of the bar for the mean reward."""
    error = scores.reward_error or 0.0
    return scores.reward or 0.0, error, error


def _refuse_file(file: Path, option: str, error: Exception) -> UserError:
    """Return the error for an output file that cannot be written."""
    return UserError(f"{file} cannot be written: {error}.", where=option)


def dump_json(result: EvaluationResult, keys: Sequence[str] = TAG_KEYS) -> str:
    """Return the result as JSON text.

    Args:
        keys: Metadata keys of the tags.
    """
    return json.dumps(to_json(result, keys), indent=1, ensure_ascii=False)
