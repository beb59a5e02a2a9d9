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
    """Print the table by model and tag, the comparisons with the first model, and the records."""
    everything = [
        scores for model_scores in result.evaluated for scores in (model_scores.scores, *model_scores.judged.values())
    ]
    console.print(_describe_played(result), soft_wrap=True)
    names = _choose_columns(everything)
    table = make_table()
    table.add_column("model", overflow="fold", min_width=min(24, max(len(e.model.label) for e in result.evaluated)))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for model_scores in result.evaluated:
        table.add_row(printable(model_scores.model.label), *_format_cells(model_scores.scores, names), style="bold")
        for tag, scores in model_scores.scores.group_by_tag(keys).items():
            table.add_row(f"  {printable(tag)}", *_format_cells(scores, names), style="dim")
        by_scorer = model_scores.scores.group_by_scorer()
        for scorer, scores in by_scorer.items() if len(by_scorer) > 1 else ():
            table.add_row(f"  scorer {printable(scorer)}", *_format_cells(scores, names), style="dim")
        for judge, scores in model_scores.judged.items():
            table.add_row(f"  {printable(_short_name(judge))}", *_format_cells(scores, names), style="dim")
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
    """Print the mean score of each scorer, if there are several."""
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
    """Return the result as JSON values."""
    return {
        "tasks": result.tasks,
        "repeats": result.repeats,
        "sampling": result.sampling,
        "known_from_training": None if result.known is None else asdict(result.known),
        "models": [_scores_to_json(model_scores, keys) for model_scores in result.evaluated],
        "judges": None if (judges := result.compare_by_judge()) is None else asdict(judges),
        "comparisons": [
            {"before": result.evaluated[0].model.label, "after": each.model.label}
            | asdict(compared)
            | {"beyond_noise": compared.is_beyond_noise}
            for each, compared in result.compare_with_first()
        ],
    }


def list_columns(result: EvaluationResult) -> list[str]:
    """Return the columns of `list_rows`, with two more for each further judge."""
    judges = [_short_name(judge) for judge in result.evaluated[0].judged]
    return [*COLUMNS, *(f"{quantity} by {name}" for quantity in ("reward", "success") for name in judges)]


def list_rows(result: EvaluationResult, keys: Sequence[str] = TAG_KEYS) -> Iterator[dict[str, Any]]:
    """Yield one row for each attempt, with equal columns."""
    for model_scores in result.evaluated:
        for index, attempt in enumerate(model_scores.scores.attempts):
            others = {_short_name(judge): scores.attempts[index] for judge, scores in model_scores.judged.items()}
            yield {
                **{name: getattr(attempt, name, None) for name in COLUMNS},
                "model": model_scores.model.label,
                "task_id": attempt.task,
                "success": attempt.success if attempt.judged else None,
                "tags": ";".join(attempt.tags(keys)),
                "record": str(model_scores.folder),
                **{f"reward by {name}": other.reward for name, other in others.items()},
                **{f"success by {name}": other.success if other.judged else None for name, other in others.items()},
            }


def write_csv(result: EvaluationResult, file: Path, keys: Sequence[str] = TAG_KEYS) -> None:
    """Write the rows as CSV. Raises UserError."""
    try:
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list_columns(result))
            writer.writeheader()
            writer.writerows(list_rows(result, keys))
    except OSError as error:
        raise _refuse_file(file, "--csv", error) from error


def write_parquet(result: EvaluationResult, file: Path, keys: Sequence[str] = TAG_KEYS) -> None:
    """Write the rows as Parquet, with types. Raises UserError."""
    import pyarrow
    from pyarrow import parquet

    kinds = {
        **dict.fromkeys(COLUMNS, pyarrow.string()),
        **{name: pyarrow.float64() for name in list_columns(result) if name.startswith("reward by ")},
        **{name: pyarrow.bool_() for name in list_columns(result) if name.startswith("success by ")},
        **dict.fromkeys(("order", "repeat", "tokens"), pyarrow.int64()),
        **dict.fromkeys(("reward", "seconds"), pyarrow.float64()),
        **dict.fromkeys(("success", "left_out"), pyarrow.bool_()),
    }
    table = pyarrow.Table.from_pylist(list(list_rows(result, keys)), schema=pyarrow.schema(list(kinds.items())))
    try:
        parquet.write_table(table, file)
    except OSError as error:
        raise _refuse_file(file, "--parquet", error) from error


def draw_report(result: EvaluationResult, file: Path) -> None:
    """Draw bars with intervals as .svg, .png or .pdf. Raises UserError."""
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
    for index, each in enumerate(result.evaluated):
        places = [group + index * width for group in range(len(names))]
        bars = [_make_rate_bar(each.scores.pass_rate(k)) for k in ks] or [_make_reward_bar(each.scores)]
        values = [value for value, _, _ in bars]
        errors = [[low for _, low, _ in bars], [high for _, _, high in bars]]
        drawn = axes.bar(places, values, width * 0.92, yerr=errors, capsize=3, label=each.model.label)
        axes.bar_label(drawn, [f"{value:.2f}" for value in values], fontsize=8, padding=2)
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
    return f"{counted(result.tasks, 'task')}, {counted(result.repeats, 'attempt')} each, {result.sampling}"


def _short_name(reference: str) -> str:
    """Return a judge's name for columns: the judge's own, or the name of the judge's YAML."""
    return Path(reference).stem if reference.endswith(YAML) else re.split("->|:", reference)[-1].strip()


def _choose_columns(everything: Sequence[Scores]) -> list[str]:
    """Return the columns of the table: reward unless equal to success, failures if any."""
    ks = [k for k in everything[0].ks() if any(scores.pass_rate(k) for scores in everything)]
    rewarded = any(not scores.has_success_verdicts or scores.solved != scores.rewards for scores in everything)
    failed = any(scores.failed for scores in everything)
    return [*(f"pass@{k}" for k in ks), *["reward"] * rewarded, "scored", *["failed"] * failed, "tokens", "s"]


def _format_cells(scores: Scores, columns: Sequence[str]) -> list[str]:
    counting = [attempt for attempt in scores.attempts if not attempt.left_out]
    cells = {
        "reward": format_number(scores.reward) + plus_minus(scores.reward_error, ".2g"),
        "scored": f"{scores.scored}/{len(scores.attempts)}",
        "failed": str(scores.failed),
        "tokens": f"{sum(a.tokens for a in counting) / max(1, len(counting)):.0f}",
        "s": f"{sum(a.seconds for a in counting) / max(1, len(counting)):.1f}",
    }
    passes = [name for name in columns if name.startswith("pass@")]
    for name in passes:  # only the first and the last have an interval, to limit the line's length
        rate = scores.pass_rate(int(name.removeprefix("pass@")))
        has_interval = name in (passes[0], passes[-1])
        cells[name] = "–" if rate is None else str(rate) if has_interval else f"{rate.value:.1%}"
    return [cells[name] for name in columns]


def _list_remarks(result: EvaluationResult) -> Iterator[str]:
    """Yield remarks on failures, missing attempts and cut replies."""
    if result.known is not None and (text := result.known.words()):
        yield f"Overlap with the training tasks: {printable(text)}"
    for model_scores in result.evaluated:
        scores, label = model_scores.scores, printable(model_scores.model.label)
        if scores.failed or scores.unscored:
            reward_note = f"a failed attempt counts as unsolved, with reward {scores.lowest:g}"
            counts = Counter(a.failure.partition(":")[0] for a in scores.attempts if a.failure and not a.left_out)
            boundaries = (
                f" ({', '.join(f'{count} {boundary}' for boundary, count in counts.most_common())})" if counts else ""
            )
            yield f"{label}: {scores.failed} failed{boundaries}, {scores.unscored} with no score; {reward_note}"
        if scores.left_out:
            cause, _ = Counter(a.failure for a in scores.attempts if a.left_out).most_common(1)[0]
            counts = Counter(a.failure.partition(":")[0] or "stopped" for a in scores.attempts if a.left_out)
            missing = ", ".join(
                f"{count} at {LOST_AT.get(boundary, boundary)}" for boundary, count in counts.most_common()
            )
            yield (
                f"{label}: {counted(scores.left_out, 'attempt')} left out, because something other than the "
                f"model failed ({missing}); correct the cause, then the same command repeats them; most frequent: "
                f"{printable(cause)[:300]}"
            )
        if (dropped := result.tasks - len({a.task for a in scores.attempts})) > 0:
            yield f"{label}: {counted(dropped, 'task')} not run: longer than data.max_prompt_length"
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
        worst = next(e for e in result.evaluated if e.scores.failed == len(e.scores.attempts))
        yield f"All attempts failed; the first one: {printable(worst.scores.attempts[0].failure)[:300]}"


def _scores_to_json(each: ModelScores, keys: Sequence[str]) -> dict[str, Any]:
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
    return (0.0, 0.0, 0.0) if rate is None else (rate.value, rate.value - rate.low, rate.high - rate.value)


def _make_reward_bar(scores: Scores) -> tuple[float, float, float]:
    error = scores.reward_error or 0.0
    return scores.reward or 0.0, error, error


def _refuse_file(file: Path, option: str, error: Exception) -> UserError:
    return UserError(f"{file} cannot be written: {error}.", where=option)


def dump_json(result: EvaluationResult, keys: Sequence[str] = TAG_KEYS) -> str:
    """Return the result as JSON text."""
    return json.dumps(to_json(result, keys), indent=1, ensure_ascii=False)
