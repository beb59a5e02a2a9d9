"""Prints the result of `ajet rejudge`, and writes one table of episodes and one of steps.

Invariant: screen and files show the same numbers. Each mean states its count. No file is overwritten.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ajet.record.attempts import AttemptRecord
from ajet.record.console import console, counted, format_number, make_table, print_line, printable
from ajet.record.files import convert_os_errors, require_place
from ajet.schema.errors import UserError
from ajet_judges.judging.rejudge import RejudgedEpisode, RejudgedRun
from ajet_judges.judging.what_if import StepRewards, StepWhatIf

SHOWN = 20
"""Maximum changed rewards, and steps, on the screen."""
TABLE, LINES = ".csv", (".jsonl", ".ndjson")
_ENDS = f"a name that ends in {TABLE}, or in {' or '.join(LINES)}"
BARS = "▁▂▃▄▅▆▇█"


def choose_tables(run: Path, out: Path | None) -> tuple[Path, Path]:
    """Return the paths of the episode table and the step table, which must not exist yet.

    Args:
        run: folder of the run.
        out: path of the episode table; its suffix chooses CSV or JSON Lines. None for the default name.

    Raises:
        UserError: a file exists already. This is checked before any judge is called.
    """
    target = out or Path(f"ajet-rejudge-{run.name}.csv")
    if target.suffix not in (TABLE, *LINES):
        raise UserError(f"{target.name} has an unsupported suffix.", where="--out", expected=_ENDS)
    tables = target, target.with_name(f"{target.stem}-steps{target.suffix}")
    for table in tables:
        require_place(table, "--out")
    return tables


def write_tables(rejudged: RejudgedRun, tables: tuple[Path, Path]) -> None:
    """Write both tables. Raises UserError."""
    for table, rows in zip(
        tables, (map(_build_episode_row, rejudged.episodes), map(_build_step_row, rejudged.steps)), strict=True
    ):
        with convert_os_errors(table, "--out"):
            _write_rows(table, rows)


def _build_episode_row(episode: RejudgedEpisode) -> dict[str, Any]:
    """Return the row of an episode in the table of episodes, by column."""
    before, after = episode.before, episode.after
    return {
        "uuid": before.uuid, "file": episode.file, "task_id": before.task, "repeat": before.repeat,
        "reward": before.reward, "judged": after.reward, "changed": episode.changed, "reason": after.reason,
        "failure": after.failure, "step": before.step, "advantage": episode.advantages[0],
        "advantage_judged": episode.advantages[1], "scorer": after.scorer,
    }  # fmt: skip


def _build_step_row(step: StepWhatIf) -> dict[str, Any]:
    """Return the row of a step in the table of steps; rewards have the suffix _recorded or _judged."""
    row = {name: value for name, value in asdict(step).items() if not isinstance(value, Mapping)}
    for side, rewards in (("recorded", step.recorded), ("judged", step.judged)):
        row |= {f"{name}_{side}": value for name, value in asdict(rewards).items()}
    return row


def _write_rows(target: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON Lines or CSV, by the file's suffix. Raises FileExistsError for an existing file."""
    with target.open("x", newline="", encoding="utf-8") as file:
        if target.suffix in LINES:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        table: csv.DictWriter[str] | None = None
        for row in rows:
            if table is None:
                table = csv.DictWriter(file, list(row))
                table.writeheader()
            table.writerow(row)


def print_rejudge(rejudged: RejudgedRun, tables: Sequence[Path]) -> None:
    """Print how many rewards changed, the reward curve, and both means with their counts."""

    changed = [episode for episode in rejudged.episodes if episode.changed]
    if changed:
        rows = make_table("episode", "task", "reward", "judged", texts=2)
        rows.add_column("reason", overflow="fold")
        for episode in changed[:SHOWN]:
            reason = episode.after.failure or episode.after.reason
            rows.add_row(
                episode.before.uuid[:12], printable(episode.before.task), format_number(episode.before.reward, "g"),
                format_number(episode.after.reward, "g"), printable(reason[:80]),
            )  # fmt: skip
        console.print(rows)
    note = f", the first {SHOWN} above" if len(changed) > SHOWN else ""
    means = " → ".join(
        _format_mean(attempts)
        for attempts in zip(*((episode.before, episode.after) for episode in rejudged.episodes), strict=True)
    )
    judge_text = f"; by {rejudged.judge}: {means}" if rejudged.episodes else ""
    print_line(
        f"{counted(len(changed), 'reward')} of {counted(len(rejudged.episodes), 'episode')} changed{note}{judge_text}"
    )
    for split in dict.fromkeys(step.split for step in rejudged.steps):
        _print_curve([step for step in rejudged.steps if step.split == split], split, rejudged.why_no_advantages)
    if rejudged.why_undecided:
        print_line(f"{rejudged.judge}: {printable(rejudged.why_undecided)[:400]} (exit code 1)")
    print_line(f"Tables: {', '.join(map(str, tables))}")


def _print_curve(steps: Sequence[StepWhatIf], split: str, why_not: str) -> None:
    """Print a table of one split's steps: mean rewards under the recorded and the new verdicts.

    For training it also has the groups with a learning signal, and the advantages whose sign would change.

    Args:
        why_not: why there are no advantages, or "".
    """
    trained = split == "train"
    title = "The same episodes under these verdicts" + ("" if trained else f", {split}")
    console.print(title, markup=False, style="dim")
    names = ["step", "reward", "judged", *(["to learn from", "judged", "sign turned"] if trained else [])]
    table = make_table(*names, texts=0)
    # Of many steps the first and the last are shown.
    for step in steps if len(steps) <= SHOWN else [*steps[: SHOWN // 2], *steps[-SHOWN // 2 :]]:
        cells = [str(step.step), format_number(step.recorded.reward), format_number(step.judged.reward)]
        if trained:
            counts = (
                "–" if rewards.learns is None else str(rewards.learns) for rewards in (step.recorded, step.judged)
            )
            cells += [f"{learns}/{step.groups}" for learns in counts]
            cells += [f"{step.flipped}/{step.credited}" if step.credited or not why_not else "–"]
        table.add_row(*cells)
    console.print(table)
    for name, side in (("recorded", [step.recorded for step in steps]), ("judged", [step.judged for step in steps])):
        if len(steps) > 1:
            console.print(f"{name:<9}{draw_sparkline(side, steps)}", markup=False, highlight=False)
    if trained and why_not:
        print_line(f"no advantages: {why_not}")


def draw_sparkline(side: Sequence[StepRewards], steps: Sequence[StepWhatIf]) -> str:
    """Return mean rewards per step as bar characters, with a gap for a step without scores.

    Args:
        side: rewards to draw.
        steps: both sides of all steps, which fix the common scale.
    """
    rewards = [
        step_rewards.reward
        for step in steps
        for step_rewards in (step.recorded, step.judged)
        if step_rewards.reward is not None
    ]
    low, high = min(rewards, default=0.0), max(rewards, default=0.0)
    reward_span = (high - low) or 1.0
    return "".join(
        " " if step_rewards.reward is None else BARS[round((step_rewards.reward - low) / reward_span * (len(BARS) - 1))]
        for step_rewards in side
    ) + (f"  {low:.3g} to {high:.3g}" if rewards else "")


def _format_mean(attempts: Sequence[AttemptRecord]) -> str:
    """Return the mean reward of the scored attempts as text, with their number."""
    rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
    mean = f"mean {fmean(rewards):.3g}" if rewards else "no reward"
    return f"{mean} over {len(rewards)} of {len(attempts)}"
