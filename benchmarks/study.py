"""Study: which algorithm learns which agent task, with several seeds, from recorded runs.

    python benchmarks/study.py                                   run what is missing, then print the tables
    python benchmarks/study.py --tasks tool --algorithms grpo rloo --seeds 3
    python benchmarks/study.py --table                           print the tables of the runs that are there

Conditions, the same for every cell: one thread; two optimizer steps per training step, so that importance ratios
differ from 1; the learning rate, batch and number of steps of the task's YAML or of `TASKS`; no KL term; held-out
tasks sampled at temperature 1, four attempts each, at four points of the run. The learning rate is tuned for none of
the algorithms. A task that needs demonstrations first gets them once, and every cell starts from that model. A cell
ends with its last step, or when it has used `--most` processor seconds (360: six minutes of a quiet core). It then
counts as stopped and enters no table.

A finished cell is not run again, and an interrupted one is resumed. Seeds come first, so that the cells that exist at
any time are comparable. The tables are those of `ajet compare`; each task's numbers go to `--results`:
`study_TASK.json` (results, differences, machine, commit) and `study_TASK.csv` (curves).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from ajet.record.status import read_status
from ajet_viewer.comparison.groups import read_comparison
from ajet_viewer.comparison.report import print_comparison, to_json, write_csv
from scripts.bench import commit_of, machine

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "tutorial"
COMMON = (
    "trainer_common.threads=1", "trainer_common.mini_batch_num=2", "trainer_common.use_kl_loss=false",
    "trainer_common.val_before_train=true", "rollout.val_kwargs.do_sample=true", "rollout.val_kwargs.temperature=1.0",
    "trainer_common.val_pass_n=4",
)  # fmt: skip
TARGET = 0.8
"""Held-out success whose cost is printed."""


@dataclass(frozen=True, slots=True)
class StudyTask:
    """An agent task: a YAML, and how a tiny model learns the task's form first."""

    kind: str
    yaml: Path
    steps: int
    tasks_per_step: int
    demonstrations: Path | None = None
    """Program that prints the rows for `sft.yaml` of the same folder; None without a warm start."""


TASKS: Mapping[str, StudyTask] = {
    "tool": StudyTask("tool use", ROOT / "ajet/cli/templates/tool/tool.yaml", 16, 8),
    "extraction": StudyTask(
        "JSON extraction",
        ROOT / "benchmarks/extraction/extraction.yaml",
        16,
        8,
        ROOT / "benchmarks/extraction/extraction.py",
    ),
    "search": StudyTask(
        "multi-turn search",
        TUTORIAL / "example_deep_research/deep_research.yaml",
        12,
        8,
        TUTORIAL / "example_deep_research/questions.py",
    ),
    "countdown": StudyTask(
        "number game",
        TUTORIAL / "example_countdown/countdown.yaml",
        32,
        16,
        TUTORIAL / "example_countdown/puzzles.py",
    ),
    "coding": StudyTask(
        "coding with unit tests",
        TUTORIAL / "example_coding/coding.yaml",
        16,
        8,
        TUTORIAL / "example_coding/functions.py",
    ),
}
ALGORITHM = "trainer_common.algorithm"
ALGORITHMS: Mapping[str, Sequence[str]] = {
    "grpo": (f"{ALGORITHM}.adv_estimator=grpo",),
    "rloo": (f"{ALGORITHM}.adv_estimator=rloo",),
    "reinforce_plus_plus": (f"{ALGORITHM}.adv_estimator=reinforce_plus_plus",),
    "dapo": (
        f"{ALGORITHM}.clip_high=0.28", f"{ALGORITHM}.loss_aggregation=token", f"{ALGORITHM}.dynamic_sampling=true",
    ),
    "gspo": (
        f"{ALGORITHM}.policy_loss=gspo", f"{ALGORITHM}.clip_low=3.0e-4", f"{ALGORITHM}.clip_high=4.0e-4",
        f"{ALGORITHM}.loss_aggregation=sequence",
    ),
    "cispo": (f"{ALGORITHM}.policy_loss=cispo",),
}  # fmt: skip
"""Overrides of each algorithm, with its paper's bounds where it has its own."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study."""

    task: str
    algorithm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task}-{self.algorithm}-{self.seed}"

    def list_overrides(self) -> list[str]:
        """Return the overrides of the task's YAML, without the model."""
        task = TASKS[self.task]
        own = [f"experiment_name={self.name}", f"seed={self.seed}", f"data.train_batch_size={task.tasks_per_step}"]
        steps = [f"trainer_common.total_training_steps={task.steps}", f"trainer_common.save_freq={task.steps}"]
        every = [f"trainer_common.test_freq={task.steps // 4}"]
        return [*own, *steps, *every, *COMMON, *ALGORITHMS[self.algorithm]]


def list_cells(tasks: Sequence[str], algorithms: Sequence[str], seeds: int) -> Iterator[Cell]:
    """Yield the cells in the order in which they run: the first seed of everything, then the second."""
    for seed in range(1, seeds + 1):
        for task in tasks:
            for algorithm in algorithms:
                yield Cell(task, algorithm, seed)


def run_cell(cell: Cell, place: Path, most: float) -> str:
    """Run a cell to its end, and return its outcome: finished, stopped or failed."""
    if find_outcome(cell, place) in ("finished", "stopped"):
        return find_outcome(cell, place)
    model = warm_model(cell.task, place)
    start = [f"model.path={model}"] if model is not None else []
    command = ["--conf", str(TASKS[cell.task].yaml), "--backbone", "local", "--exp-dir", str(place)]
    if run_ajet([*command, *cell.list_overrides(), *start], place / f"{cell.name}.txt", most) is None:
        (place / cell.name / "stopped").touch()
    return find_outcome(cell, place)


def find_outcome(cell: Cell, place: Path) -> str:
    """Return finished, stopped (too long), failed or missing."""
    folder = place / cell.name
    if (folder / "stopped").exists():
        return "stopped"
    return str((read_status(folder) or {}).get("outcome", "failed")) if folder.is_dir() else "missing"


def warm_model(task: str, place: Path) -> Path | None:
    """Return the model of the task's demonstrations, made once; None if the task needs none."""
    program = TASKS[task].demonstrations
    if program is None:
        return None
    warm = place / "warm" / task
    found = sorted(warm.glob("*/exports/step-*"))
    if found:
        return found[-1]
    warm.mkdir(parents=True, exist_ok=True)
    rows = warm / "demonstrations.jsonl"
    rows.write_text(subprocess.run([sys.executable, str(program)], check=True, text=True, capture_output=True).stdout)
    common = ["--exp-dir", str(warm)]
    conf = str(program.with_name("sft.yaml"))
    run_ajet(["sft", "--conf", conf, *common, f"sft.train_files={rows}"], warm / "sft.txt", float("inf"))
    (run,) = (each.name for each in warm.iterdir() if (each / "run.json").is_file())
    run_ajet(["export", run, *common], warm / "export.txt", float("inf"))
    return sorted(warm.glob("*/exports/step-*"))[-1]


def run_ajet(words: Sequence[str], log: Path, most: float) -> int | None:
    """Run a command of ajet, and return its exit code, or None if it used more than `most` processor seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    with log.open("a") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ajet.cli.launcher", *words], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
            env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        while process.poll() is None:
            if measure_processor(process.pid) > most:
                return None
            time.sleep(1.0)
        return process.returncode
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure_processor(pid: int) -> float:
    """Return the processor seconds of a process and its children."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        watched = psutil.Process(pid)
        for each in (watched, *watched.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def report_task(task: str, algorithms: Sequence[str], seeds: int, place: Path, results: Path) -> None:
    """Print a task's tables, and write its numbers."""
    cells = {name: [Cell(task, name, seed) for seed in range(1, seeds + 1)] for name in algorithms}
    ended = {name: [c for c in each if find_outcome(c, place) == "finished"] for name, each in cells.items()}
    groups = [f"{name}={','.join(str(place / cell.name) for cell in each)}" for name, each in ended.items() if each]
    if not groups:
        print(f"{task}: no finished run")
        return
    print(
        f"\n== {task}: {TASKS[task].kind}; {sum(map(len, ended.values()))} of {seeds * len(algorithms)} runs finished"
    )
    comparison = read_comparison(groups, place)
    print_comparison(comparison, TARGET)
    results.mkdir(parents=True, exist_ok=True)
    about = {"date": datetime.now(UTC).date().isoformat(), "commit": commit_of(ROOT), "machine": machine()}
    asked = {"task": task, "kind": TASKS[task].kind, "seeds": seeds, "target": TARGET}
    found = {**asked, **about, **to_json(comparison, TARGET)}
    (results / f"study_{task}.json").write_text(json.dumps(found, indent=1) + "\n")
    write_csv(comparison, results / f"study_{task}.csv")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=float, default=360.0, help="processor seconds of a run")
    parser.add_argument("--place", type=Path, default=ROOT / "launcher_record" / "study", help="folder of the runs")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--table", action="store_true", help="print the tables of the runs that are there")
    options = parser.parse_args(arguments)
    place = options.place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    failed = 0
    for cell in () if options.table else list_cells(options.tasks, options.algorithms, options.seeds):
        outcome = run_cell(cell, place, options.most)
        failed += outcome == "failed"
        print(f"{datetime.now():%H:%M:%S} {cell.name}: {outcome}", flush=True)
    for task in options.tasks:
        report_task(task, options.algorithms, options.seeds, place, options.results)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
