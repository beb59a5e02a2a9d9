"""Finds the runs that a command line names, in groups, and reads what a comparison needs of each.

Invariant: read-only. Numbers come from `metrics.jsonl`, held-out attempts from the episodes of the last validation.
What a run did not record is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from statistics import fmean
from typing import Any

from ajet.config import read_recorded_tree
from ajet.record.attempts import AttemptRecord, read_attempts
from ajet.record.curve import Points, collect_points, smooth_points
from ajet.record.files import read_rows
from ajet.record.find_run import require_run
from ajet.record.held_out import rows_of_last_judge
from ajet.record.scores import Scores, failure_reward
from ajet.schema.commands import format_list_command
from ajet.schema.errors import UserError

METRICS = "metrics.jsonl"
EXPECTED = "RUN, LABEL=RUN,RUN,… or LABEL='PATTERN*': names of runs, or their folders"


@dataclass(frozen=True, slots=True)
class RunCost:
    """What a run has cost up to some row."""

    steps: int
    seconds: float
    processor: float | None
    """Processor seconds; None if a training step lacks them."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One recorded run."""

    name: str
    folder: Path
    seed: int | None
    rows: Sequence[Mapping[str, Any]]
    """Rows of metrics since the last change of the judge."""
    attempts: Sequence[AttemptRecord]
    """Held-out attempts of the last validation."""
    cost: RunCost

    @property
    def judge(self) -> str:
        """The digest of the judge, or "" if none is recorded."""
        return next((str(row["judge"]) for row in reversed(self.rows) if row.get("judge")), "")

    @property
    def validated(self) -> int | None:
        """The step of the last validation."""
        return _find_last_validation(self.rows)

    def reward_curve(self) -> Points:
        """Return the smoothed mean training reward by step."""
        return smooth_points(collect_points(self.rows, "train/reward"))

    def held_out_curve(self, quantity: str) -> Points:
        """Return each validation's success rate or mean reward by step."""
        return collect_points(self.rows, f"validation/{'success_rate' if quantity == 'success' else 'reward'}")

    def cost_to(self, quantity: str, target: float) -> RunCost | None:
        """Return the cost up to the first validation that reached `target`, or None."""
        name = f"validation/{'success_rate' if quantity == 'success' else 'reward'}"
        for row, cost in zip(self.rows, accumulate_costs(self.rows), strict=True):
            if row.get(name) is not None and row[name] >= target:
                return cost
        return None


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with one label, which differ in their seed only."""

    label: str
    runs: Sequence[ComparedRun]


@dataclass(frozen=True)
class RunComparison:
    """Groups of runs, and the quantity by which held-out results are compared."""

    groups: Sequence[RunGroup]
    quantity: str
    """success, or reward if a run did not judge success."""
    lowest: float
    """Reward of a failed held-out attempt."""

    def score_run(self, run: ComparedRun) -> dict[str, float]:
        """Return the mean of the last validation by task; empty without held-out episodes."""
        scores = Scores(run.attempts, self.lowest)
        return scores.solved if self.quantity == "success" else scores.rewards

    def score_group(self, group: RunGroup) -> list[float]:
        """Return the held-out mean of each run that has one."""
        task_means_by_run = [self.score_run(run) for run in group.runs]
        return [fmean(task_means.values()) for task_means in task_means_by_run if task_means]

    def score_seeds(self, group: RunGroup) -> dict[int, float]:
        """Return the held-out mean by seed; empty unless every run has a recorded seed of its own."""
        scored_runs = [(run.seed, scores) for run in group.runs if (scores := self.score_run(run))]
        mean_by_seed = {seed: fmean(scores.values()) for seed, scores in scored_runs if seed is not None}
        return mean_by_seed if len(mean_by_seed) == len(scored_runs) else {}

    def pool_attempts(self, group: RunGroup) -> Scores:
        """Return the held-out attempts of all runs of a group as scores by task."""
        return Scores([attempt for run in group.runs for attempt in run.attempts], self.lowest)


def read_comparison(arguments: Sequence[str], root: Path) -> RunComparison:
    """Read the runs that the arguments name.

    Args:
        arguments: RUN, or LABEL=RUN,RUN; a run may be a pattern.
        root: Folder of all runs.

    Raises:
        UserError: A run does not exist or has no metrics.
    """
    runs_by_label: dict[str, dict[Path, ComparedRun]] = {}
    for argument in arguments:
        label, folders = _parse_group(argument, root)
        for folder in folders:
            runs_by_label.setdefault(label, {}).setdefault(folder.resolve(), read_run(folder, root))
    groups = [RunGroup(label, list(runs.values())) for label, runs in runs_by_label.items()]
    held_out_attempts = [run.attempts for group in groups for run in group.runs if run.attempts]
    is_judged = bool(held_out_attempts) and all(Scores(attempts).has_success_verdicts for attempts in held_out_attempts)
    lowest = failure_reward(attempt for attempts in held_out_attempts for attempt in attempts)
    return RunComparison(groups, "success" if is_judged else "reward", lowest)


def read_run(folder: Path, root: Path) -> ComparedRun:
    """Read one run. `root`: folder of all runs, below which it has its name."""
    all_rows = list(read_rows(folder / METRICS))
    rows = rows_of_last_judge(all_rows)
    step = _find_last_validation(rows)
    attempts = [] if step is None else read_attempts(folder / "episodes" / f"step-{step}.validation.jsonl")
    is_below_root = folder.absolute().is_relative_to(root.absolute())
    name = str(folder.absolute().relative_to(root.absolute())) if is_below_root else str(folder)
    # The cost of the last row; nothing without rows.
    *_, cost = RunCost(0, 0.0, None), *accumulate_costs(all_rows)
    return ComparedRun(name, folder, _read_seed(folder), rows, attempts, cost)


def accumulate_costs(rows: Sequence[Mapping[str, Any]]) -> Iterator[RunCost]:
    """Yield the cost of the rows up to each of them."""
    steps = 0
    seconds = 0.0
    processor = 0.0
    is_known = True
    for row in rows:
        seconds += (row.get("seconds/step") or 0.0) + (row.get("seconds/validation") or 0.0)
        if "seconds/step" in row:
            steps += 1
            step_processor = row.get("seconds/processor")
            is_known = is_known and step_processor is not None
            processor += step_processor or 0.0
        yield RunCost(steps, seconds, processor if steps and is_known else None)


def _find_last_validation(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the step of the last validation in some rows of metrics, or None."""
    return next((int(row["step"]) for row in reversed(rows) if row.get("validation/tasks")), None)


def _read_seed(folder: Path) -> int | None:
    """Return the seed in a run's resolved.yaml, or None if it is missing."""
    file = folder / "resolved.yaml"
    tree = read_recorded_tree(file) if file.is_file() else {}
    seed = (tree.get("ajet") or {}).get("seed")
    return seed if isinstance(seed, int) else None


def _parse_group(argument: str, root: Path) -> tuple[str, list[Path]]:
    """Return the label of an argument and the folders of its runs."""
    label, separator, names = argument.partition("=")
    # An argument without a label, or a path that contains "=", is its own label.
    if not separator or "/" in label:
        label, names = argument, argument
    folders = [folder for name in names.split(",") if name for folder in _find_runs(name, root)]
    if not folders:
        raise UserError(f"{argument} names no run.", where="RUN", expected=EXPECTED)
    return label, folders


def _find_runs(name: str, root: Path) -> list[Path]:
    """Return the folders of the runs with a name or pattern. Raises UserError if there is none."""
    if not has_magic(name):
        return [require_run(name, root, holding=METRICS, expected="a run that has recorded metrics")]
    run_folders = [Path(path).parent for path in sorted(glob(str(root / name / METRICS)) or glob(f"{name}/{METRICS}"))]
    if not run_folders:
        raise UserError(
            f"No run matches {name}.",
            where=str(root),
            expected=EXPECTED,
            do=f"{format_list_command(root)} lists the runs",
        )
    return run_folders
