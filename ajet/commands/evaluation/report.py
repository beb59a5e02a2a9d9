"""What an evaluation came to: a table on the screen, rows for other programs, a picture.

Invariant: screen, JSON, rows and picture are of the same scores; each rate says over how many tasks, each difference
with what chance alone may do.
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

from rich.table import Table

from ajet.commands.evaluation import judge_comparison
from ajet.commands.evaluation.judged import YAML
from ajet.commands.evaluation.play import Evaluated, Result
from ajet.record.attempts import TAG_KEYS
from ajet.record.console import console, counted, printable
from ajet.record.intervals import plus_minus
from ajet.record.scores import Comparison, Rate, Scores
from ajet.schema.errors import MissingExtra, UserError

NAMED = 8
"""Tasks that flipped, and that a line names."""
LOST_AT = {"engine": "the model's server or engine", "judge": "the judge", "ajet": "ajet itself"}
"""Boundaries in words; the others are words already."""
COLUMNS = (
    "model", "task_id", "order", "repeat", "reward", "success", "status", "failure", "reason", "left_out", "tokens",
    "seconds", "tags", "question", "uuid", "record", "scorer",
)  # fmt: skip


def show(result: Result, keys: Sequence[str] = TAG_KEYS) -> None:
    """The table, by model and tag; how the others differ from the first; where the records lie."""
    everything = [scores for each in result.evaluated for scores in (each.scores, *each.judged.values())]
    console.print(_played(result), soft_wrap=True)
    names = _columns(everything)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("model", overflow="fold", min_width=min(24, max(len(e.model.label) for e in result.evaluated)))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for each in result.evaluated:
        table.add_row(printable(each.model.label), *_cells(each.scores, names), style="bold")
        for tag, scores in each.scores.tagged(keys).items():
            table.add_row(f"  {printable(tag)}", *_cells(scores, names), style="dim")
        for scorer, scores in _scorers(each.scores).items():
            table.add_row(f"  scorer {printable(scorer)}", *_cells(scores, names), style="dim")
        for judge, scores in each.judged.items():
            table.add_row(f"  {printable(_short(judge))}", *_cells(scores, names), style="dim")
    console.print(table)
    if keys != TAG_KEYS and not any(each.scores.tagged(keys) for each in result.evaluated):
        told = f"No task has {' or '.join(keys)} in its metadata: there is nothing to split by."
        console.print(printable(told), markup=False, style="yellow", soft_wrap=True)
    _show_parts(result)
    if (judges := result.judges()) is not None:
        judge_comparison.show(judges, console)
    for line in _remarks(result):
        console.print(line, markup=False, soft_wrap=True)
    for after, compared in result.comparisons():
        before = result.evaluated[0].model.label
        style = ("green" if compared.difference > 0 else "red") if compared.beyond_noise else ""
        said = f"{after.model.label} against {before}: {compared.words()}; {compared.noise_words()}"
        console.print(printable(said), style=style, markup=False, soft_wrap=True)
        for what, tasks in (("gained", compared.gained), ("lost", compared.lost)):
            if tasks:
                named = ", ".join(tasks[:NAMED]) + (f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else "")
                console.print(
                    f"  {what} {counted(len(tasks), 'task')}: {printable(named)}", markup=False, soft_wrap=True
                )
        if not compared.gained and not compared.lost:
            console.print("  no task flipped", soft_wrap=True)
    for each in result.evaluated:
        console.print(f"Record of {printable(each.model.label)}: {each.folder}", markup=False, soft_wrap=True)


def _scorers(scores: Scores) -> dict[str, Scores]:
    """The scores by the choice of scorers, where there were several."""
    found = scores.by_scorer()
    return found if len(found) > 1 else {}


def _show_parts(result: Result) -> None:
    """Show what each scorer gave, where there are several."""
    given = [(each.model.label, each.scores.each_scorer()) for each in result.evaluated]
    if max((len(scorers) for _, scorers in given), default=0) < 2:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("model", "scorer", "mean", "scored"):
        table.add_column(name, justify="left" if name in ("model", "scorer") else "right", overflow="fold")
    for label, scorers in given:
        for scorer, (mean, scored, of) in scorers.items():
            told = "–" if mean is None else f"{mean:.3f}"
            table.add_row(printable(label), printable(scorer), told, f"{scored}/{of}", style="dim")
    console.print(table)


def as_json(result: Result, keys: Sequence[str] = TAG_KEYS) -> dict[str, Any]:
    """The result as JSON values."""
    return {
        "tasks": result.tasks,
        "repeats": result.repeats,
        "sampling": result.sampling,
        "known_from_training": None if result.known is None else asdict(result.known),
        "models": [_as_json(each, keys) for each in result.evaluated],
        "judges": None if (judges := result.judges()) is None else judge_comparison.as_json(judges),
        "comparisons": [
            {"before": result.evaluated[0].model.label, "after": each.model.label, **_compared(compared)}
            for each, compared in result.comparisons()
        ],
    }


def columns(result: Result) -> list[str]:
    """The columns of `rows`: two more for each further judge."""
    judges = [_short(judge) for judge in result.evaluated[0].judged]
    return [*COLUMNS, *(f"{what} by {name}" for what in ("reward", "success") for name in judges)]


def rows(result: Result, keys: Sequence[str] = TAG_KEYS) -> Iterator[dict[str, Any]]:
    """One row an attempt, with the same columns for each."""
    for each in result.evaluated:
        for at, attempt in enumerate(each.scores.attempts):
            others = {_short(judge): scores.attempts[at] for judge, scores in each.judged.items()}
            yield {
                "model": each.model.label,
                "task_id": attempt.task,
                "order": attempt.order,
                "repeat": attempt.repeat,
                "reward": attempt.reward,
                "success": attempt.success if attempt.judged else None,
                "status": attempt.status,
                "failure": attempt.failure,
                "reason": attempt.reason,
                "left_out": attempt.left_out,
                "tokens": attempt.tokens,
                "seconds": attempt.seconds,
                "tags": ";".join(attempt.tags(keys)),
                "question": attempt.question,
                "uuid": attempt.uuid,
                "record": str(each.folder),
                "scorer": attempt.scorer,
                **{f"reward by {name}": other.reward for name, other in others.items()},
                **{f"success by {name}": other.success if other.judged else None for name, other in others.items()},
            }


def write_csv(result: Result, file: Path, keys: Sequence[str] = TAG_KEYS) -> None:
    """The rows as text. Raises UserError."""
    try:
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, columns(result))
            writer.writeheader()
            writer.writerows(rows(result, keys))
    except OSError as error:
        raise _unwritable(file, "--csv", error) from error


def write_parquet(result: Result, file: Path, keys: Sequence[str] = TAG_KEYS) -> None:
    """The rows with their types. Raises UserError."""
    import pyarrow
    from pyarrow import parquet

    kinds = {
        **dict.fromkeys(COLUMNS, pyarrow.string()),
        **{name: pyarrow.float64() for name in columns(result) if name.startswith("reward by ")},
        **{name: pyarrow.bool_() for name in columns(result) if name.startswith("success by ")},
        **dict.fromkeys(("order", "repeat", "tokens"), pyarrow.int64()),
        **dict.fromkeys(("reward", "seconds"), pyarrow.float64()),
        **dict.fromkeys(("success", "left_out"), pyarrow.bool_()),
    }
    table = pyarrow.Table.from_pylist(list(rows(result, keys)), schema=pyarrow.schema(list(kinds.items())))
    try:
        parquet.write_table(table, file)
    except OSError as error:
        raise _unwritable(file, "--parquet", error) from error


def draw(result: Result, file: Path) -> None:
    """Bars with their intervals, a group a quantity, as .svg, .png or .pdf. Raises UserError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "local", needed_for="--picture") from None
    ks = [k for k in result.evaluated[0].scores.ks() if any(each.scores.passes(k) for each in result.evaluated)]
    names = [f"pass@{k}" for k in ks] or ["mean reward"]
    figure = Figure(figsize=(max(4.8, 1.6 * len(names) * len(result.evaluated)), 3.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(result.evaluated)
    for at, each in enumerate(result.evaluated):
        places = [group + at * width for group in range(len(names))]
        bars = [_bar(each.scores.passes(k)) for k in ks] or [_reward_bar(each.scores)]
        values = [value for value, _, _ in bars]
        errors = [[low for _, low, _ in bars], [high for _, _, high in bars]]
        drawn = axes.bar(places, values, width * 0.92, yerr=errors, capsize=3, label=each.model.label)
        axes.bar_label(drawn, [f"{value:.2f}" for value in values], fontsize=8, padding=2)
    axes.set_xticks([group + 0.4 - width / 2 for group in range(len(names))], names)
    if ks:
        axes.set_ylim(0, 1.05)
    axes.set_title(f"{_played(result)}; 95 % intervals", loc="left", fontsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower left")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:  # ValueError: of a format that matplotlib does not know
        raise _unwritable(file, "--picture", error) from error


def _played(result: Result) -> str:
    return f"{counted(result.tasks, 'task')}, {counted(result.repeats, 'attempt')} each, {result.sampling}"


def _short(reference: str) -> str:
    """A judge's own name, as columns have it; a YAML's is its file's."""
    return Path(reference).stem if reference.endswith(YAML) else re.split("->|:", reference)[-1].strip()


def _columns(everything: Sequence[Scores]) -> list[str]:
    """The reward only where it is not success said again, failures where there are some."""
    ks = [k for k in everything[0].ks() if any(scores.passes(k) for scores in everything)]
    rewarded = any(not scores.tells_success or scores.solved != scores.rewards for scores in everything)
    failed = any(scores.failed for scores in everything)
    return [*(f"pass@{k}" for k in ks), *["reward"] * rewarded, "scored", *["failed"] * failed, "tokens", "s"]


def _cells(scores: Scores, columns: Sequence[str]) -> list[str]:
    counting = [attempt for attempt in scores.attempts if not attempt.left_out]
    reward = "–" if scores.reward is None else f"{scores.reward:.3f}"
    reward += plus_minus(scores.reward_error, ".2g")
    cells = {
        "reward": reward,
        "scored": f"{scores.scored}/{len(scores.attempts)}",
        "failed": str(scores.failed),
        "tokens": f"{sum(a.tokens for a in counting) / max(1, len(counting)):.0f}",
        "s": f"{sum(a.seconds for a in counting) / max(1, len(counting)):.1f}",
    }
    passes = [name for name in columns if name.startswith("pass@")]
    for name in passes:  # the intervals of those between would make the line long and say little more
        rate = scores.passes(int(name.removeprefix("pass@")))
        whole = name in (passes[0], passes[-1])
        cells[name] = "–" if rate is None else str(rate) if whole else f"{rate.value:.1%}"
    return [cells[name] for name in columns]


def _remarks(result: Result) -> Iterator[str]:
    """Remarks on what the numbers do not say themselves."""
    if result.known is not None and (said := result.known.words()):
        yield f"Known from training: {printable(said)}"
    for each in result.evaluated:
        scores, label = each.scores, printable(each.model.label)
        if scores.failed or scores.unscored:
            worth = f"a failed attempt solves nothing and counts as reward {scores.lowest:g}"
            by = Counter(a.failure.partition(":")[0] for a in scores.attempts if a.failure and not a.left_out)
            named = f" ({', '.join(f'{count} {boundary}' for boundary, count in by.most_common())})" if by else ""
            yield f"{label}: {scores.failed} failed{named}, {scores.unscored} with no score; {worth}"
        if scores.left_out:
            why, _ = Counter(a.failure for a in scores.attempts if a.left_out).most_common(1)[0]
            by = Counter(a.failure.partition(":")[0] or "stopped" for a in scores.attempts if a.left_out)
            lost = ", ".join(f"{count} at {LOST_AT.get(boundary, boundary)}" for boundary, count in by.most_common())
            yield (
                f"{label}: {counted(scores.left_out, 'attempt')} left out, they say nothing about the model ({lost}); "
                f"mend that, and the same command plays them again; mostly: {printable(why)[:300]}"
            )
        if (dropped := result.tasks - len({a.task for a in scores.attempts})) > 0:
            yield f"{label}: {counted(dropped, 'task')} not played: too long for data.max_prompt_length"
        if cut := sum(attempt.cut for attempt in scores.attempts):
            replies = sum(attempt.replies for attempt in scores.attempts)
            yield (
                f"{label}: {cut} of {replies} replies cut by a limit on tokens (max_tokens of the request, "
                "rollout.max_response_length_in_one_turn or rollout.max_model_len)"
            )
        if not scores.tells_success and scores.scored:
            yield f"{label}: no pass rate: neither workflow nor judge says whether an attempt succeeded"
    for untold in result.untold():
        yield f"{printable(untold)}: nothing is known of it: no attempt came to a verdict (exit code 1)"
    if any(each.scores.failed == len(each.scores.attempts) for each in result.evaluated if each.scores.attempts):
        worst = next(e for e in result.evaluated if e.scores.failed == len(e.scores.attempts))
        yield f"All attempts failed; the first: {printable(worst.scores.attempts[0].failure)[:300]}"


def _as_json(each: Evaluated, keys: Sequence[str]) -> dict[str, Any]:
    return {
        "model": each.model.label,
        "record": str(each.folder),
        **_numbers(each.scores),
        "judges": {judge: _numbers(scores) for judge, scores in each.judged.items()},
        "tags": {tag: _numbers(scores) for tag, scores in each.scores.tagged(keys).items()},
        "scorers": {name: _numbers(scores) for name, scores in each.scores.by_scorer().items()},
        "scorer_means": {
            name: {"mean": mean, "scored": scored, "of": of}
            for name, (mean, scored, of) in each.scores.each_scorer().items()
        },
    }


def _numbers(scores: Scores) -> dict[str, Any]:
    passes = {f"pass@{k}": _rate(rate) for k in scores.ks() if (rate := scores.passes(k)) is not None}
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


def _rate(rate: Rate) -> dict[str, Any]:
    return asdict(rate)


def _compared(compared: Comparison) -> dict[str, Any]:
    return {**asdict(compared), "beyond_noise": compared.beyond_noise}


def _bar(rate: Rate | None) -> tuple[float, float, float]:
    return (0.0, 0.0, 0.0) if rate is None else (rate.value, rate.value - rate.low, rate.high - rate.value)


def _reward_bar(scores: Scores) -> tuple[float, float, float]:
    error = scores.reward_error or 0.0
    return scores.reward or 0.0, error, error


def _unwritable(file: Path, option: str, error: Exception) -> UserError:
    return UserError(f"{file} cannot be written: {error}.", where=option)


def spelled(result: Result, keys: Sequence[str] = TAG_KEYS) -> str:
    """`as_json` as text."""
    return json.dumps(as_json(result, keys), indent=1, ensure_ascii=False)
