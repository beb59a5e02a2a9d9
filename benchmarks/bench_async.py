"""Async against sync: the same budget of episodes, with agents that wait for something else than the model.

Agents of the tool template, whose tool takes so long that an episode waits at least as long as a step computes (that is
measured first). The bound is what no overlap of the two sides can beat: the longer side of each step, sampling or
training, each as it takes with one core by itself, and once the shorter one before there is anything to overlap with.
The sampler is a process of its own: what of its start the trainer's does not hide is in the time, and not in the bound.

    ratio   bound / time of async; the limit is 0.9
    reward  of the last quarter of the steps, over the seeds: async must not be worse within noise (two standard errors)

Printed beside it: the case in which nobody waits, where two sides cannot win much, and the time of sync with all cores.

    python benchmarks/bench_async.py [--steps 12] [--seeds 3] [--groups 8] [--repeats 8] [--latency S]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ratios import kept

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

LIMIT = 0.9
STALENESS = 2
"""Versions that a token may be old, with async."""
TEMPLATE = ROOT / "ajet" / "cli" / "templates" / "tool"
WAITING = """
import asyncio
import os

from ajet import Workflow
from workflow import PriceAgent, Prices  # noqa: F401


class WaitingAgent(PriceAgent):
    async def execute(self, workflow_task, tuner):
        await asyncio.sleep(float(os.environ["BENCH_LATENCY"]))
        return await super().execute(workflow_task, tuner)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The rows of one training's steps."""

    rows: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """From the beginning of the first step to the end of the last, checkpoints included."""
        first = self.rows[0]
        return float(self.rows[-1]["time"] - first["time"] + first["seconds/step"])

    @property
    def first(self) -> float:
        """Seconds until the first batch is there; with async what is left of the sampler's start is in it."""
        return float(self.rows[0]["seconds/rollout"])

    @property
    def reward(self) -> float:
        """Mean over the last quarter of the steps."""
        last = self.rows[-max(1, len(self.rows) // 4) :]
        return fmean(row["train/reward"] for row in last)

    @property
    def bound(self) -> float:
        """Seconds of the longer side of each step, and once of the shorter."""
        sides = [(row["seconds/rollout"], row["seconds/update"]) for row in self.rows]
        played, trained = (sum(side) for side in zip(*sides, strict=True))
        return float(max(played, trained) + min(sides[0]))


def trained(folder: Path, name: str, latency: float, cores: int | None, *settings: str) -> Run:
    """One training, in a process of its own. `cores`: that torch may use, of one side; None: the mode's own choice."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(folder / "tool.yaml"), "--backbone", "local"]
    command += ["--exp-dir", str(folder / "runs"), f"experiment_name={name}", *settings]
    env = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    env |= {"BENCH_LATENCY": str(latency), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    if cores is not None:
        command.append(f"trainer_common.threads={cores}")
    done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return Run([row for row in map(json.loads, lines) if "tasks" in row])


class Setting:
    """One experiment, in both modes."""

    def __init__(self, folder: Path, steps: int, groups: int, repeats: int) -> None:
        self._folder = folder
        self._common = [
            f"trainer_common.total_training_steps={steps}", f"data.train_batch_size={groups}",
            f"rollout.num_repeat={repeats}", f"rollout.max_env_worker={groups * repeats}",
            f"rollout.max_num_seqs={groups * repeats}", "rollout.user_workflow=waiting.py->WaitingAgent",
            "task_reader.type=waiting.py->Prices", "trainer_common.val_before_train=false",
            "trainer_common.test_freq=0", "trainer_common.save_freq=0",
        ]  # fmt: skip

    def sync(self, name: str, latency: float, *, cores: int | None, seed: int, steps: int | None = None) -> Run:
        more = [f"trainer_common.total_training_steps={steps}"] if steps is not None else []
        return trained(self._folder, name, latency, cores, *self._common, f"seed={seed}", *more)

    def asynchronous(self, name: str, latency: float, *, seed: int) -> Run:
        more = ["trainer_common.mode=async", f"trainer_common.max_staleness={STALENESS}", f"seed={seed}"]
        return trained(self._folder, name, latency, None, *self._common, *more)


def noise(values: Sequence[float]) -> float:
    """Two standard errors of the mean; 0 of a single one."""
    return 2 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def line(name: str, run: Run, beside: str = "") -> str:
    return f"{name:28} {run.seconds:8.1f} s   reward {run.reward:5.2f}   {beside}"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when both goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, value in (("--steps", 12), ("--seeds", 3), ("--groups", 8), ("--repeats", 8)):
        parser.add_argument(flag, type=int, default=value)
    parser.add_argument("--latency", type=float, default=None, help="seconds; by default what a step computes")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-async-") as made:
        folder = Path(made)
        shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True)
        (folder / "waiting.py").write_text(WAITING)
        setting = Setting(folder, chosen.steps, chosen.groups, chosen.repeats)
        return measured(setting, chosen.seeds, chosen.latency)


def measured(setting: Setting, seeds: int, latency: float | None) -> int:
    computing = setting.sync("computing", 0.0, cores=1, seed=1, steps=4)
    computed = fmean(row["seconds/rollout"] + row["seconds/update"] for row in computing.rows[1:])
    latency = computed if latency is None else latency
    print(
        f"a step computes {computed:.2f} s with one core; an episode waits {latency:.2f} s outside of the model",
        flush=True,
    )
    ratios, rewards = [], {"sync": list[float](), "async": list[float]()}
    for seed in range(1, seeds + 1):
        alone = setting.sync(f"alone-{seed}", latency, cores=1, seed=seed)
        sync = setting.sync(f"sync-{seed}", latency, cores=None, seed=seed)
        both = setting.asynchronous(f"async-{seed}", latency, seed=seed)
        ratios.append(alone.bound / both.seconds)
        rewards["sync"].append(fmean((alone.reward, sync.reward)))  # of one seed: no two draws
        rewards["async"].append(both.reward)
        print(line(f"seed {seed}: sync, one core", alone, f"bound of two sides {alone.bound:.1f} s"), flush=True)
        print(line(f"seed {seed}: sync, all cores", sync), flush=True)
        print(
            line(
                f"seed {seed}: async",
                both,
                f"bound / time {ratios[-1]:.2f}; {sync.seconds / both.seconds:.2f} x sync; "
                f"the first batch after {both.first:.1f} s, alone {alone.first:.1f} s",
            )
        )
    nobody = setting.sync("nobody-sync", 0.0, cores=None, seed=1), setting.asynchronous("nobody-async", 0.0, seed=1)
    gained = nobody[0].seconds / nobody[1].seconds
    print(line("nobody waits: sync", nobody[0]))
    print(line("nobody waits: async", nobody[1], f"{gained:.2f} x sync"))
    ratio = fmean(ratios)
    worse = fmean(rewards["sync"]) - fmean(rewards["async"])
    allowed = (noise(rewards["sync"]) ** 2 + noise(rewards["async"]) ** 2) ** 0.5
    print(f"bound / time of async {ratio:.2f} (goal: {LIMIT:g}), over {seeds} seeds")
    print(f"reward reached: {worse:+.3f} less than sync, within noise up to {allowed:.3f}")
    kept("nobody waits, against in turns", gained)
    fast = kept("the bound of two sides against the time", ratio, at_least=LIMIT)
    noisy = seeds < 2  # of one seed nothing tells the noise
    good = kept("reward less than in turns, beyond noise", worse - allowed, at_most=None if noisy else 0.0)
    return 0 if good and fast else 1


if __name__ == "__main__":
    sys.exit(main())
