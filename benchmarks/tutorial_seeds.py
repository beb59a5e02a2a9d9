"""Tutorials that train a tiny model, with three seeds: reward before and after, curves and seconds.

    python benchmarks/tutorial_seeds.py --out FILE [TUTORIAL …]      plays the seeds that are missing
    python benchmarks/tutorial_seeds.py --table FILE [TUTORIAL …]    prints the tables of recorded runs
    python benchmarks/tutorial_seeds.py --table FILE TUTORIAL --picture curve.png

Commands and settings are those of the tutorial's README, with one thread, a validation before the first step, and a
seed. What a tutorial does before its last command is done once, so that all seeds begin with the same model.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from seed_runs import (
    Rows,
    add_row,
    find_export,
    format_markdown,
    learn_demonstrations,
    make_parser,
    plot_range,
    read_rows,
    report,
    run_ajet,
)

from ajet.record.intervals import plus_minus
from scripts.bench import machine
from scripts.pictures import reduce_colours

ROOT = Path(__file__).parents[1]
PATHS = (ROOT, ROOT / "plugins")


@dataclass(frozen=True, slots=True)
class Tutorial:
    """How a tutorial is run."""

    yaml: str
    """The YAML of the last command, below tutorial/."""
    sft: str | None = None
    """The YAML of `ajet sft` before, in the same folder."""
    demonstrations: str | None = None
    """The program that prints `demonstrations.jsonl`, in the same folder."""
    model: str = ""
    """Name of the folder of the model that `make_model.py` makes."""
    exports: str = ""
    """The run whose exported model the last command starts with."""
    settings: tuple[str, ...] = ()
    """Further overrides of the last command."""


TUTORIALS: Mapping[str, Tutorial] = {
    "agentrl": Tutorial("example_agentrl/grpo.yaml"),
    "coding": Tutorial("example_coding/coding.yaml", "sft.yaml", "functions.py", exports="coding_sft"),
    "command_agent": Tutorial(
        "example_command_agent/command_agent.yaml",
        settings=("trainer_common.total_training_steps=16", "trainer_common.test_freq=8"),
    ),
    "countdown": Tutorial("example_countdown/countdown.yaml", "sft.yaml", "puzzles.py", exports="countdown_sft"),
    "deep_research": Tutorial(
        "example_deep_research/deep_research.yaml", "sft.yaml", "questions.py", exports="research_sft"
    ),
    "distillation": Tutorial("example_distillation/distillation.yaml", "teacher.yaml"),
    "learn2ask": Tutorial("example_learn2ask/learn2ask.yaml"),
    "math_agent": Tutorial("example_math_agent/arithmetic.yaml", "sft.yaml", "arithmetic.py", exports="math_sft"),
    "mcp_agent": Tutorial("example_mcp_agent/mcp_agent.yaml"),
    "openenv": Tutorial("example_openenv/small.yaml", "sft.yaml", "demonstrations.py", exports="openenv_sft"),
    "rubrics_judge": Tutorial("example_rubrics_judge/rubrics_judge.yaml"),
    "sft": Tutorial("example_sft/rl.yaml", "sft.yaml", exports="shop_sft"),
    "sft_alone": Tutorial("example_sft/rl.yaml"),
    "verifiers": Tutorial(
        "example_verifiers/small.yaml",
        "sft.yaml",
        "demonstrations.py",
        model="adder",
        exports="verifiers_sft",
    ),
    "werewolves": Tutorial(
        "example_werewolves/werewolves.yaml",
        "sft.yaml",
        "demonstrations.py",
        model="player",
        exports="werewolves_sft",
    ),
}
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class TutorialRun:
    """The numbers of one run. Values of `held_out` and what follows have the step as key."""

    example: str
    stage: str
    """`rl`, or `sft` for what comes before."""
    date: str
    machine: Mapping[str, Any]
    processor_s: float
    wall_s: float
    seed: int | None = None
    held_out_tasks: int = 0
    held_out: Mapping[str, float] | None = None
    held_out_error: Mapping[str, float] | None = None
    """Half the width of the 95 % interval, absent if all tasks had the same reward."""
    held_out_success: Mapping[str, float] | None = None
    success_low: Mapping[str, float] | None = None
    success_high: Mapping[str, float] | None = None
    failed: Mapping[str, int] | None = None
    training_reward: Sequence[float] = ()


def prepare(name: str, folder: Path, out: Path) -> list[str]:
    """Do what comes before the last command, once. Return the last command's overrides."""
    tutorial = TUTORIALS[name]
    folder.mkdir(parents=True, exist_ok=True)
    if tutorial.sft:
        sft = (ROOT / "tutorial" / tutorial.yaml).with_name(tutorial.sft)
        program = [tutorial.demonstrations] if tutorial.demonstrations else []
        if seconds := learn_demonstrations(
            sft, folder, PATHS, program=program, model=tutorial.model, run=tutorial.exports
        ):
            add_row(out, TutorialRun(name, "sft", today(), machine(), *seconds))
    return [f"model.path={find_export(folder, tutorial.exports)}"] if tutorial.exports else []


def play_run(name: str, seed: int, folder: Path, overrides: Sequence[str]) -> TutorialRun:
    """Play the last command with a seed, and return its numbers."""
    tutorial, run = TUTORIALS[name], f"{name}_{seed}"
    settings = [f"experiment_name={run}", f"seed={seed}", "trainer_common.threads=1"]
    settings += ["trainer_common.val_before_train=true", *tutorial.settings, *overrides]
    command = ["--conf", str(ROOT / "tutorial" / tutorial.yaml), "--backbone", "local", "--fresh", *settings]
    seconds = run_ajet(*command, cwd=folder, paths=PATHS)
    rows = read_rows(folder / "launcher_record" / run / "metrics.jsonl")
    validations = {str(row["step"]): row for row in rows if "validation/episodes" in row}

    def by_step(key: str) -> dict[str, Any]:
        name = f"validation/{key}"
        return {step: round(row[name], 4) for step, row in validations.items() if name in row}

    tasks = next(iter(validations.values()))["validation/tasks"]
    training = [round(row["train/reward"], 4) for row in rows if "train/reward" in row]
    return TutorialRun(
        name, "rl", today(), machine(), seconds.processor, seconds.wall, seed, tasks,
        by_step("reward"), by_step("reward_error"), by_step("success_rate"), by_step("success_low"),
        by_step("success_high"), by_step("failed"), training,
    )  # fmt: skip


def today() -> str:
    """Return the date."""
    return datetime.now(UTC).date().isoformat()


def format_tables(rows: Rows) -> str:
    """Return each tutorial's table, with a line above that says what its preparation took."""
    tables = []
    for name in dict.fromkeys(row["example"] for row in rows):
        runs = [row for row in rows if row["example"] == name and row["stage"] == "rl"]
        once = [f", {row['processor_s']:.0f} processor seconds before" for row in rows
                if row["example"] == name and row["stage"] == "sft"]  # fmt: skip
        tables.append(f"{name}, {runs[0]['held_out_tasks']} held-out tasks{''.join(once)}\n{format_table(runs)}")
    return "\n\n".join(tables)


def format_table(runs: Rows) -> str:
    """Return the table of a tutorial's runs: held-out results, mean reward of each quarter of training, and cost."""
    # Rewards of 0 and 1 only are shown as a share.
    as_share = all(abs(reward - run["held_out_success"][step]) < 0.001
                   for run in runs for step, reward in run["held_out"].items())  # fmt: skip
    head = ["Seed", *(f"Held out after {step} steps" for step in choose_steps(runs[0]))]
    head += ["Reward in training, by quarters", "Processor seconds", "Minutes"]
    return format_markdown(head, [list_cells(run, as_share=as_share) for run in runs])


def list_cells(run: Mapping[str, Any], *, as_share: bool) -> list[str]:
    """Return the cells of a run."""
    rewards = run["training_reward"]
    quarter = max(1, len(rewards) // 4)
    quarters = ", ".join(f"{fmean(rewards[at : at + quarter]):.2f}" for at in range(0, quarter * 4, quarter))
    cost = [f"{run['processor_s']:.0f}", f"{run['wall_s'] / 60:.0f}"]
    return [
        str(run["seed"]),
        *(format_result(run, step, as_share=as_share) for step in choose_steps(run)),
        quarters,
        *cost,
    ]


def choose_steps(run: Mapping[str, Any]) -> list[str]:
    """Return the first, the middle and the last step with a validation."""
    steps = list(run["held_out"])
    return list(dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1])))


def format_result(run: Mapping[str, Any], step: str, *, as_share: bool) -> str:
    """Return a validation's share of successes, or its mean reward, with the 95 % interval."""
    if as_share:
        low, high = run["success_low"][step], run["success_high"][step]
        return f"{run['held_out'][step]:.0%} ({low:.0%} to {high:.0%})"
    return f"{run['held_out'][step]:.2f}{plus_minus(run['held_out_error'].get(step), '.2f')}"


def draw_curves(rows: Rows, picture: Path) -> None:
    """Draw the mean and range of the seeds: reward of each training step, held-out reward as dots."""
    from matplotlib.figure import Figure

    examples = list(dict.fromkeys(row["example"] for row in rows))
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    for example, colour in zip(examples, ("tab:blue", "tab:orange"), strict=False):
        runs = [row for row in rows if row["example"] == example and row["stage"] == "rl"]
        name = f"{example}: " if len(examples) > 1 else ""
        plot_range(axes, [run["training_reward"] for run in runs], f"{name}attempts in training", colour)
        for step in runs[0]["held_out"]:
            rewards = [run["held_out"][step] for run in runs]
            axes.plot([int(step)] * len(rewards), rewards, color=colour)
            axes.plot(int(step), fmean(rewards), "o", color=colour)
        axes.plot([], [], "o", color=colour, label=f"{name}held-out tasks")
    axes.set(xlabel="step", ylabel="reward")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.legend(title="mean and range of the seeds", loc="lower right")
    figure.savefig(picture, dpi=90)
    reduce_colours(picture)


def main() -> None:
    """Play the missing runs, or print the tables."""
    parser = make_parser(__doc__, SEEDS)
    parser.add_argument("tutorials", nargs="*", metavar="TUTORIAL", help="default: all")
    arguments = parser.parse_args()
    if arguments.out:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (arguments.folder or Path(temporary)).resolve()
            for name in arguments.tutorials or TUTORIALS:
                known = {row.get("seed") for row in read_rows(arguments.out) if row["example"] == name}
                if missing := [seed for seed in arguments.seeds if seed not in known]:
                    overrides = prepare(name, folder / name, arguments.out.resolve())
                    for seed in missing:
                        add_row(arguments.out, play_run(name, seed, folder / name, overrides))

    def choose(rows: Rows) -> Rows:
        return [row for row in rows if not arguments.tutorials or row["example"] in arguments.tutorials]

    report(arguments, lambda rows: format_tables(choose(rows)), lambda rows, path: draw_curves(choose(rows), path))


if __name__ == "__main__":
    main()
