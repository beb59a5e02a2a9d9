"""tutorial/example_swe with three seeds: success on held-out repositories before and after, and what changed.

    python benchmarks/bench_swe.py --out swe.jsonl      plays the seeds that are not in the file
    python benchmarks/bench_swe.py --table swe.jsonl    prints the table of recorded runs

Each run is the tutorial by the `ajet` command with one thread, from one model of the demonstrations. Its containers
are podman's, from an image that is made of this machine's own Python and git, unless `--image` names another one.

Invariant: a row depends on the run's folder and its seconds alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from seed_runs import (
    Seconds,
    add_row,
    find_export,
    format_markdown,
    learn_demonstrations,
    make_parser,
    plot_range,
    read_rows,
    report,
    run_ajet,
    run_python,
)

from ajet.record import EpisodeFiles
from ajet.record.intervals import half_width, plus_minus
from ajet.schema.episode import Episode

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "tutorial" / "example_swe"
SEEDS = (0, 1, 2)
PATHS = (ROOT, ROOT / "plugins")
RUN_TESTS = "run tests"
RUN = "swe_sft"


@dataclass(frozen=True, slots=True)
class Attempts:
    """Counts of the attempts of one step or validation."""

    played: int
    solved: int
    ran_tests: int
    """Attempts that ran the tests before their first edit."""
    solved_after_tests: int
    failed: int
    """Attempts without a reward. They are in no other count."""
    solved_by_task: dict[str, float]
    """Share of each task's attempts."""


@dataclass(frozen=True, slots=True)
class SweRun:
    """The numbers of one run."""

    seed: int
    held_out: dict[int, Attempts]
    """Step -> attempts at the held-out repositories."""
    training: list[Attempts]
    processor_s: float
    wall_s: float


def prepare(folder: Path, image: str) -> Path:
    """Write the tasks, and return the model that learned from the demonstrations, made unless it is there."""
    run_python(str(TUTORIAL / "repositories.py"), "tasks", "--image", image, cwd=folder, paths=PATHS)
    program = ["repositories.py", "--demonstrations"]
    seconds = learn_demonstrations(TUTORIAL / "sft.yaml", folder, PATHS, program=program, model="coder", run=RUN)
    if seconds is not None:
        print(f"demonstrations: {seconds.processor:.0f} processor seconds, {seconds.wall:.0f} by the clock")
    return find_export(folder, RUN)


def play_run(seed: int, model: Path, folder: Path) -> SweRun:
    """Play one run and return its numbers."""
    tasks = [f"task_reader.harbor.{key}={folder}/tasks/{split}" for key, split in
             (("path", "train"), ("validation", "held_out"))]  # fmt: skip
    settings = [f"model.path={model}", f"experiment_name=swe_{seed}", f"seed={seed}", "trainer_common.threads=1"]
    command = ["--conf", str(TUTORIAL / "swe.yaml"), "--fresh", *tasks, *settings]
    seconds = run_ajet(*command, cwd=folder, paths=PATHS)
    return read_run(folder / "launcher_record" / f"swe_{seed}", seed, seconds)


def read_run(folder: Path, seed: int, seconds: Seconds) -> SweRun:
    """Return the numbers of a recorded run."""
    files = EpisodeFiles(folder / "episodes")
    held_out = {step: count_attempts(files.read(step, "validation")) for step in files.steps("validation")}
    training = [count_attempts(files.read(step)) for step in files.steps()]
    return SweRun(seed, held_out, training, seconds.processor, seconds.wall)


def count_attempts(episodes: Iterable[Episode]) -> Attempts:
    """Count what the agent did in the attempts."""
    rewards, after_tests, failed = defaultdict[str, list[bool]](list), list[bool](), 0
    for episode in episodes:
        if episode.reward is None:
            failed += 1
            continue
        solved = episode.reward == 1
        rewards[episode.task.task_id].append(solved)
        replies = [message["content"].strip() for message in episode.messages if message["role"] == "assistant"]
        if RUN_TESTS in replies:
            after_tests.append(solved)
    by_task = {task: fmean(solved) for task, solved in sorted(rewards.items())}
    every = [solved for each in rewards.values() for solved in each]
    return Attempts(len(every), sum(every), len(after_tests), sum(after_tests), failed, by_task)


HEAD = ("Seed", "Solved before", "after", "Gain", "Ran the tests before", "after", "Solved of these before", "after",
        "Processor s", "Minutes")  # fmt: skip


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of recorded runs: a line per seed, and one of all seeds."""
    return format_markdown(HEAD, [*(list_cells(str(row["seed"]), [row]) for row in rows), list_cells("all", rows)])


def list_cells(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of one line."""
    before, after = ([list(row["held_out"].values())[at] for row in rows] for at in (0, -1))
    ends = (before, after)
    shares = [average_tasks(end) for end in ends]
    gains = [last - first for first, last in zip(*shares, strict=True)]
    return [
        name,
        *(f"{fmean(share):.2f}{plus_minus(half_width(share), '.2f')}" for share in shares),
        f"{fmean(gains):.2f}{plus_minus(half_width(gains), '.2f')}",
        *(f"{total(end, 'ran_tests') / total(end, 'played'):.0%}" for end in ends),
        *(f"{total(end, 'solved_after_tests') / max(1, total(end, 'ran_tests')):.0%}" for end in ends),
        f"{fmean(row['processor_s'] for row in rows):.0f}",
        f"{fmean(row['wall_s'] for row in rows) / 60:.0f}",
    ]


def average_tasks(ends: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return each task's share of solved attempts, averaged over the runs."""
    return [fmean(end["solved_by_task"][task] for end in ends) for task in ends[0]["solved_by_task"]]


def total(counts: Iterable[Mapping[str, Any]], name: str) -> int:
    """Return the sum of a count."""
    return sum(each[name] for each in counts)


def draw_curves(rows: Sequence[Mapping[str, Any]], picture: Path) -> None:
    """Draw training attempts over the steps, mean and range of the seeds, and success on held-out tasks as dots."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, label in (("ran_tests", "ran the tests"), ("solved", "solved")):
        curves = [[step[name] / step["played"] for step in row["training"]] for row in rows]
        plot_range(axes, curves, f"training: {label}")
    for step in rows[0]["held_out"]:
        shares = average_tasks([row["held_out"][step] for row in rows])
        axes.errorbar(int(step), fmean(shares), half_width(shares) or 0, fmt="o", color="black", capsize=3)
    axes.plot([], [], "o", color="black", label="held out: solved, and its 95 % interval")
    axes.set(xlabel="step", ylabel="share of attempts", ylim=(0, 1))
    axes.legend(loc="upper left")
    figure.savefig(picture, dpi=90)


def find_image(named: str | None) -> str:
    """Return the base image: the named one, or one made of this machine's Python in a store of its own."""
    if named:
        return named
    from tests.support.container_fixtures import IMAGE, lacks_podman

    if problem := lacks_podman():
        raise SystemExit(f"no container can be started: {problem}")
    return IMAGE


def main() -> None:
    """Play the missing runs, or print the table."""
    parser = make_parser(__doc__, SEEDS)
    parser.add_argument("--image", help="base image of the tasks, such as docker.io/library/python:3.12")
    arguments = parser.parse_args()
    if arguments.out:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.folder or Path(temporary)).resolve()
            model = prepare(folder, find_image(arguments.image))
            known = {row["seed"] for row in read_rows(arguments.out)}
            for seed in arguments.seeds:
                if seed not in known:
                    add_row(arguments.out, play_run(seed, model, folder))
    report(arguments, format_table, draw_curves)


if __name__ == "__main__":
    main()
