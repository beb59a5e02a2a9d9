"""Addition: processor seconds of training until 0.8 of the held-out sums are right, and what the model knows at last.

Every run is the addition task as a person starts it, the `ajet` command in a process of its own, with one thread.
Counted is that process's processor time between a step's end and what came before it: loading, validations and the
checkpoint are not training, and other processes' work does not count, so that a busy machine can be used. (One thread's
processor seconds are what one quiet core takes, and more than two take.)

Three splits of the addition task's sums (addition_splits.py): `train`, 141 in place of the addition task's 341, which
is harder; `validation`, by which settings are chosen and the time is told; `test`, 200 sums that nothing was chosen by,
for the accuracy at the end (`ajet eval`).

    python benchmarks/bench_addition.py                                  one seed of the addition task as it is
    python benchmarks/bench_addition.py --seeds 5 --test                 its median and spread; the test split
    python benchmarks/bench_addition.py --set trainer_common.optim.lr=1e-4 --name "lr 1e-4"
    python benchmarks/bench_addition.py --clock --threads 2              seconds of the clock, of two quiet cores
    python benchmarks/bench_addition.py --sweep --out sweep.jsonl        the grid below by successive halving
    python benchmarks/bench_addition.py --table sweep.jsonl              what is in that file
    python benchmarks/bench_addition.py --answers --seeds 10             what the right answers teach (`ajet sft`)

A row a run goes to `--out` as its end is known; runs that are there already are not repeated. Limits (seeds as asked
for): a median of at most 70 processor seconds; and where ten seeds or more had the test split played, at least 0.85 of
it in nine of ten of them (with fewer the share is kept, and not judged).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from ratios import kept

ROOT = Path(__file__).parents[1]
ADDITION = ROOT / "benchmarks" / "addition" / "addition.yaml"
SPLITS = ROOT / "benchmarks" / "addition_splits.py"
LIMIT_S, GOOD, OFTEN, ENOUGH = 70.0, 0.85, 0.9, 10
"""Seconds to the target; of the test split, at the end, in what share of the seeds, judged from so many on."""
COMMON = "trainer_common"
ALGORITHM = f"{COMMON}.algorithm"
BATCH = (
    "data.train_batch_size=32",
    "rollout.num_repeat=2",
    "rollout.max_response_length_in_one_turn=16",
    f"{ALGORITHM}.adv_estimator=reinforce_plus_plus",
    f"{COMMON}.total_training_steps=12",
)
FEW = ("data.train_batch_size=16", "rollout.num_repeat=4")
GRID: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "lr 2e-5": (f"{COMMON}.optim.lr=2.0e-5",),
    "lr 8e-5": (f"{COMMON}.optim.lr=8.0e-5",),
    "warm-up of 4 steps": (f"{COMMON}.optim.lr_warmup_steps=4",),
    "12 steps": (f"{COMMON}.total_training_steps=12",),
    "16 tasks of 4": FEW,
    "16 tasks of 4, warm-up of 4 steps": (*FEW, f"{COMMON}.optim.lr_warmup_steps=4"),
    "16 tasks of 8": ("data.train_batch_size=16",),
    "4 tasks of 16": ("data.train_batch_size=4", "rollout.num_repeat=16"),
    "2 optimizer steps": (f"{COMMON}.mini_batch_num=2",),
    "2 optimizer steps, clip_high 0.28": (f"{COMMON}.mini_batch_num=2", f"{ALGORITHM}.clip_high=0.28"),
    "advantages not divided by std": (f"{ALGORITHM}.norm_adv_by_std=false",),
    "32 tasks of 2, REINFORCE++, lr 2e-5": (*BATCH, f"{COMMON}.optim.lr=2.0e-5"),
    "32 tasks of 2, REINFORCE++, LoRA of 16": (
        *BATCH,
        f"{COMMON}.lora.rank=16",
        f"{COMMON}.lora.alpha=32",
        f"{COMMON}.optim.lr=1.0e-3",
        f"{COMMON}.gradient_checkpointing=false",
    ),
    "KL 0.002": (f"{COMMON}.use_kl_loss=true", f"{COMMON}.kl_loss_coef=0.002"),
    "KL 0.05": (f"{COMMON}.use_kl_loss=true", f"{COMMON}.kl_loss_coef=0.05"),
}
"""What is varied, one thing at a time, as overrides of addition.yaml."""
BY_ANSWERS = (
    "data.train_batch_size=32",
    f"{COMMON}.total_training_steps=20",
    f"{COMMON}.total_epochs=99",
    f"{COMMON}.lora.rank=16",
    f"{COMMON}.lora.alpha=32",
    f"{COMMON}.optim.lr=1.0e-3",
    f"{COMMON}.optim.lr_schedule=linear",
)
"""How the right answers are learned: the steps of the addition task, the adapters of the grid."""


@dataclass
class Run:
    """One seed of one setting. `accuracies`: (step, processor seconds of training, held-out accuracy), the first before
    training; `rewards`: of each step; `test`: accuracy on the third split, None where it was not asked for; `stopped`:
    why it was ended early."""

    name: str
    overrides: list[str]
    seed: int
    accuracies: list[tuple[int, float, float]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    test: float | None = None
    stopped: str | None = None

    @property
    def last(self) -> float:
        return self.accuracies[-1][2] if self.accuracies else 0.0

    def time_to(self, target: float) -> float:
        """Processor seconds of training until the first validation at `target` or above; inf where none was."""
        return next((seconds for _, seconds, accuracy in self.accuracies if accuracy >= target), math.inf)


class Clock:
    """Processor seconds of training, from what the command prints and its processor time at that moment."""

    def __init__(self) -> None:
        self.training, self._mark = 0.0, 0.0

    def see(self, line: str, used: float, run: Run) -> bool:
        """Note a line that the command printed when it had used `used` processor seconds; True where it told of a step
        or a validation. The first validation, before any step, begins the clock."""
        if found := re.match(r"step\s+(\d+)/\d+\s+held out: reward ([\d.]+)", line):
            run.accuracies.append((int(found[1]), round(self.training, 1), float(found[2])))
        elif found := re.match(r"step\s+\d+/\d+\s+(?:reward ([\d.]+)|no episode)", line):
            self.training += used - self._mark
            run.rewards.append(float(found[1] or 0))
            run.processor_s = round(self.training, 1)
        else:
            return False
        self._mark = used
        return True


def played(
    run: Run, folder: Path, *, every: int, threads: int, target: float | None, most: float, by_clock: bool
) -> Run:
    """Train; ends it early at the first validation at `target` (None: goes on to its end), or once its training took
    `most` seconds, of its processes' time or `by_clock`."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(ADDITION), "--backbone", "local", "--fresh"]
    command += ["--exp-dir", str(folder), "experiment_name=run", f"seed={run.seed}", f"{COMMON}.threads={threads}"]
    command += [f"task_reader.type={SPLITS}->ThreeSplits"]
    command += [f"{COMMON}.test_freq={every}", f"{COMMON}.val_before_train=true", *run.overrides]
    quiet = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "OMP_NUM_THREADS": str(threads), "COLUMNS": "200"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **quiet},
        start_new_session=True,
    )  # fmt: skip
    clock, watched, said = Clock(), psutil.Process(process.pid), []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            said.append(line)
            with_children = [watched, *watched.children(recursive=True)] if process.poll() is None else []
            times = [each.cpu_times() for each in with_children]
            used = time.monotonic() if by_clock else sum(each.user + each.system for each in times)
            if not clock.see(line, used, run):
                continue
            print(f"    {run.name}, seed {run.seed}: {line.rstrip()}  [{clock.training:.0f} s]", flush=True)
            if target is not None and run.last >= target:
                run.stopped = f"held out {run.last}"
            elif clock.training >= most:
                run.stopped = f"{most:g} seconds"
            if run.stopped:
                break
    finally:
        if process.poll() is None and (run.stopped or sys.exc_info()[0]):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if code and not run.stopped:
        sys.exit(f"ajet ended with exit code {code}:\n{''.join(said[-30:])}")
    return run


def tested(folder: Path, threads: int) -> float:
    """Accuracy of the last checkpoint on the third split, greedily."""
    from addition_splits import ThreeSplits

    tasks, told = folder / "test.jsonl", folder / "test.json"
    rows = [
        {"task_id": task.task_id, "main_query": task.main_query, "metadata": task.metadata}
        for task in ThreeSplits(None).tasks("test")
    ]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "ajet.cli.launcher", "eval", str(folder / "run"), "--model", "latest"]
    command += ["--conf", str(ADDITION)]  # the record names code of two folders
    command += ["--exp-dir", str(folder)]  # what is played is recorded beside the YAML without it
    with told.open("w") as out:
        subprocess.run(
            [*command, "--tasks", str(tasks), "--json"],
            check=True, stdout=out, cwd=ADDITION.parent, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
    [model] = json.loads(told.read_text())["models"]
    assert model["tasks"] == len(rows), model
    return float(model["pass@1"]["value"])


def read(file: Path | None) -> list[Run]:
    """The runs that a file has."""
    if file is None or not file.exists():
        return []
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [Run(**{**row, "accuracies": [tuple(each) for each in row["accuracies"]]}) for row in rows]


def taught(seed: int, folder: Path, threads: int) -> float:
    """Accuracy on the third split after learning from the right answers of `train`, in the agent's own form."""
    from addition_splits import ThreeSplits

    example = runpy.run_path(str(ADDITION.with_name("agent.py")))["EXAMPLE"]
    shown = [{**message, "weight": 0} if message["role"] == "assistant" else message for message in example]
    with (folder / "rows.jsonl").open("w") as rows:
        for task in ThreeSplits(None).tasks("train"):
            said = f"{task.task_id.replace('+', ' + ')} = \\boxed{{{task.metadata['answer']}}}"
            asked = {"role": "user", "content": task.main_query}
            rows.write(json.dumps({"messages": [*shown, asked, {"role": "assistant", "content": said}]}) + "\n")
    command = [sys.executable, "-m", "ajet.cli.launcher", "sft", "--model", "embedded:smollm2-135m"]
    command += ["--data", rows.name, "--exp-dir", str(folder), "experiment_name=run"]
    command += [f"seed={seed}", f"{COMMON}.threads={threads}", *BY_ANSWERS]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    return tested(folder, threads)


def by_answers(seeds: Iterable[int], threads: int) -> None:
    """Print what the right answers teach, seed by seed."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="ajet-q-") as place:
            found.append(taught(seed, Path(place), threads))
        print(f"    right answers, seed {seed}: test {found[-1]}", flush=True)
    print(f"right answers: {min(found)} to {max(found)} of the test split, {statistics.median(found)} in the median")
    kept("test split, by the right answers", statistics.median(found))


def ranked(runs: Iterable[Run], target: float) -> list[tuple[str, list[Run]]]:
    """Settings, the best first: by the median time to the target, then by the mean last accuracy."""
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)

    def worth(of: list[Run]) -> tuple[float, float]:
        return statistics.median(run.time_to(target) for run in of), -statistics.mean(run.last for run in of)

    return sorted(by_name.items(), key=lambda item: worth(item[1]))


def swept(grid: dict[str, tuple[str, ...]], play: Callable[[Run], Run], done: list[Run], target: float) -> list[Run]:
    """Successive halving: every setting with seed 1, the better half of them with seed 2 too, the better half of those
    with seeds 3 and 4, and so on, until one is left. `done` are not played again."""
    names, seeds, runs = list(grid), 1, list(done)
    played_already = {(run.name, run.seed) for run in done}
    while True:
        for seed in range(1, seeds + 1):
            for name in names:
                if (name, seed) not in played_already:
                    played_already.add((name, seed))
                    runs.append(play(Run(name, list(grid[name]), seed)))
        if len(names) == 1:
            return runs
        order = [name for name, _ in ranked(runs, target) if name in names]
        names, seeds = order[: (len(names) + 1) // 2], seeds * 2


def table(runs: Sequence[Run], target: float, unit: str = "processor s") -> Iterator[str]:
    """Markdown, a row a setting, the best first."""
    yield f"| setting | seeds | {unit} to {target}: median (range) | last held out | test: median (least) |"
    yield "|---|---|---|---|---|"
    for name, of in ranked(runs, target):
        times = [run.time_to(target) for run in of]
        reached = sum(map(math.isfinite, times))
        told = "never" if not reached else f"{statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f})"
        told = told.replace("inf", "not reached")
        told += f", {reached} of {len(of)}" if 0 < reached < len(of) else ""
        last = ", ".join(f"{run.last:.2f}" for run in of)
        tests = [run.test for run in of if run.test is not None]
        tried = ""
        if tests:
            tried = f"{statistics.median(tests):.3f} ({min(tests):.3f})"
            tried += f", {sum(test >= GOOD for test in tests)} of {len(tests)} at {GOOD}"
        yield f"| {name} | {len(of)} | {told} | {last} | {tried} |"


def main() -> None:
    """Print the table; exit 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="in place of the YAML's")
    parser.add_argument("--name", default="as it is")
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--every", type=int, default=2, help="steps between validations")
    parser.add_argument("--most", type=float, default=math.inf, help="seconds of training of a run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", action="store_true", help="count by the clock, in place of processor seconds")
    parser.add_argument("--test", action="store_true", help="train to the end, and play the third split")
    parser.add_argument("--answers", action="store_true", help="learn from the right answers, and play the third split")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--only", nargs="+", choices=GRID, default=list(GRID), help="of the sweep's settings")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE", help="print what is in it; nothing is run")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no training outlives it
    done = read(given.table or given.out)
    asked = range(given.first_seed, given.first_seed + given.seeds)
    if given.answers:
        return by_answers(asked, given.threads)

    def play(run: Run) -> Run:
        with tempfile.TemporaryDirectory(prefix="ajet-q-") as place:
            folder, target = Path(place), None if given.test else given.target
            played(
                run, folder, every=given.every, threads=given.threads, target=target, most=given.most,
                by_clock=given.clock,
            )  # fmt: skip
            if given.test and not run.stopped:
                run.test = tested(folder, given.threads)
                print(f"    {run.name}, seed {run.seed}: test {run.test}", flush=True)
        if given.out:
            with given.out.open("a") as out:
                out.write(json.dumps(asdict(run)) + "\n")
        return run

    if given.table:
        runs = done
    elif given.sweep:
        runs = swept({name: GRID[name] for name in given.only}, play, done, given.target)
    else:
        missing = [seed for seed in asked if not any((run.name, run.seed) == (given.name, seed) for run in done)]
        runs = done + [play(Run(given.name, list(given.set), seed)) for seed in missing]
    unit = "seconds" if given.clock else "processor seconds"
    print("\n".join(table(runs, given.target, unit)))
    if not (given.table or given.sweep):
        median = statistics.median(run.time_to(given.target) for run in runs if run.name == given.name)
        print(f"{given.name}: {median:.0f} {unit} to {given.target} (at most {LIMIT_S:.0f})")
        within = kept(f"{unit} to {given.target}", median, at_most=LIMIT_S)
        sys.exit(not (within & good_at_last([run for run in runs if run.name == given.name])))


def good_at_last(runs: Iterable[Run]) -> bool:
    """Keep the share of seeds that know enough of the test split at their end; whether it is enough of them."""
    tests = [run.test for run in runs if run.test is not None]
    if not tests:
        return True
    share, judged = sum(test >= GOOD for test in tests) / len(tests), len(tests) >= ENOUGH
    limit = f"at least {OFTEN}" if judged else f"judged from {ENOUGH} seeds on"
    print(f"at least {GOOD} of the test split in {share:.2f} of {len(tests)} seeds ({limit})")
    return kept(f"share of seeds at {GOOD} of the test split", share, at_least=OFTEN if judged else None)


if __name__ == "__main__":
    main()
