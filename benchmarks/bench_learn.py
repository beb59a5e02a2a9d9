"""Learn: the addition task against TRL's GRPOTrainer: seconds a step, peak memory, wall time to a held-out accuracy.

Ours is the addition task as a person starts it: the `ajet` command in a process of its own. TRL gets the same model
folder, tasks, batch, threads and optimizer setting, and the same torch and transformers; TRL itself is installed
into the cache on first use. Limits: at least 4 times faster a step, at most half the memory.

    python benchmarks/bench_learn.py [--target 0.8] [--trl-steps 3] [--full] [--threads 2] [--trl-pass 64]

TRL takes minutes a step on a small machine, so by default it runs `--trl-steps` steps and its time to the accuracy
is left open; with `--full` it trains until it has the accuracy, or for as many steps as the addition task has.
Both compute a step's 64 sequences in one pass; `--trl-pass 16` lets TRL take four (measured once on two cores: 41 s
a step either way, 4.8 GiB in place of 8.7).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from ratios import kept

from ajet.config import Experiment, load_experiment
from ajet.engine.model_cache import open_entry
from ajet.engine.model_source import locate_model
from ajet.engine.models import prepare_folder

ROOT = Path(__file__).parents[1]
ADDITION = ROOT / "benchmarks" / "addition" / "addition.yaml"
TRL = "trl==1.16.0"
SPEED_LIMIT, MEMORY_LIMIT = 4.0, 0.5


@dataclass(slots=True)
class Result:
    """What one trainer did. `accuracies`: (training seconds so far, held-out accuracy)."""

    seconds: list[float] = field(default_factory=list)
    accuracies: list[tuple[float, float]] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def step(self) -> float:
        """Median seconds of a step, without the first, which warms up."""
        return statistics.median(self.seconds[1:] or self.seconds)

    def time_to(self, target: float) -> float | None:
        """Training seconds until the first validation at or above `target`."""
        return next((seconds for seconds, accuracy in self.accuracies if accuracy >= target), None)

    def line(self, name: str, target: float) -> str:
        """A row of the table."""
        reached = self.time_to(target)
        best = max((accuracy for _, accuracy in self.accuracies), default=None)
        until = f"{reached:.0f} s" if reached is not None else "not measured" if best is None else f"no ({best:.2f})"
        return f"{name:6} {self.step:10.1f} {self.peak_bytes / 2**30:10.2f} {len(self.seconds):6} {until:>16}"


def run_watched(command: list[str], on_line: Callable[[str], None], **environment: str) -> int:
    """Run a command to its end; answers the peak of its resident memory, its children's included, in bytes."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}, cwd=tempfile.gettempdir()
    )
    watched, peak = psutil.Process(process.pid), 0
    assert process.stdout is not None
    reader = threading.Thread(target=lambda lines: [on_line(line.rstrip()) for line in lines], args=(process.stdout,))
    reader.start()
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            family = [watched, *watched.children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in family))
        time.sleep(0.02)
    reader.join()
    if process.returncode:
        sys.exit(f"{command[0]} ended with exit code {process.returncode}")
    return peak


def ours(threads: int, place: Path) -> Result:
    """The addition task by the ajet command."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(ADDITION), "--backbone", "local"]
    command += ["--exp-dir", str(place), "--fresh", f"trainer_common.threads={threads}"]
    command += ["trainer_common.device=cpu"]  # as TRL is told to
    result = Result(peak_bytes=run_watched(command, print))
    [metrics] = place.glob("*/metrics.jsonl")
    for row in map(json.loads, metrics.read_text().splitlines()):
        if "seconds/step" in row:
            result.seconds.append(row["seconds/step"])
        if "validation/success_rate" in row:
            result.accuracies.append((sum(result.seconds), row["validation/success_rate"]))
    return result


def trl_folder() -> Path:
    """Where TRL is, without what it needs: that is all in this environment already."""

    def install(into: Path) -> None:
        pip = [sys.executable, "-m", "pip"] if any(distributions(name="pip")) else ["uv", "pip"]
        python = ["--python", sys.executable] if pip[0] == "uv" else []
        subprocess.run([*pip, "install", *python, "--quiet", "--no-deps", "--target", str(into), TRL], check=True)

    return open_entry(f"bench/{TRL.replace('==', '-')}", install)


def setting_of(experiment: Experiment, **more: Any) -> dict[str, Any]:
    """The addition task's setting as trl_grpo.py reads it."""
    sys.path.insert(0, str(ADDITION.parent))
    from agent import EXAMPLE
    from sums import Sums

    config, reader = experiment.ajet, Sums(experiment.config)
    optim = config.trainer_common.optim

    def rows(split: str) -> list[dict[str, Any]]:
        return [
            {"prompt": [*EXAMPLE, {"role": "user", "content": task.main_query}], "answer": task.metadata["answer"]}
            for task in reader.tasks(split)
        ]

    assert config.model.path is not None
    return {
        "model": str(prepare_folder(locate_model(config.model.path, base=experiment.base))),
        "train": rows("train"),
        "held_out": rows("validation"),
        "tasks": config.data.train_batch_size,
        "repeats": config.rollout.num_repeat,
        "max_tokens": config.rollout.max_response_length_in_one_turn,
        "temperature": config.rollout.temperature,
        "lr": optim.lr,
        "schedule": optim.lr_schedule,
        "betas": optim.betas,
        **more,
    }


def theirs(setting: dict[str, Any], place: Path) -> Result:
    """The same by TRL."""
    result = Result()

    def on_line(line: str) -> None:
        if not line.startswith('{"step"'):
            return
        row = json.loads(line)
        result.seconds.append(row["seconds"])
        if "accuracy" in row:
            result.accuracies.append((sum(result.seconds), row["accuracy"]))
        print(f"TRL step {row['step']}/{setting['steps']}  {row['seconds']:.1f} s  {row.get('accuracy', '')}")

    file = place / "setting.json"
    file.write_text(json.dumps({**setting, "output": str(place / "trl")}))
    command = [sys.executable, str(ROOT / "benchmarks" / "peers" / "trl_grpo.py"), str(file)]
    result.peak_bytes = run_watched(command, on_line, PYTHONPATH=str(trl_folder()), TOKENIZERS_PARALLELISM="false")
    return result


def main() -> None:
    """Print the table; exit 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--trl-steps", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="train with TRL to the accuracy too")
    parser.add_argument("--trl-pass", type=int, default=64, help="sequences of one forward and backward pass of TRL")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    arguments = parser.parse_args()
    experiment = load_experiment(ADDITION, backbone="local")
    every = experiment.ajet.trainer_common.test_freq if arguments.full else 0
    steps = experiment.ajet.trainer_common.total_training_steps if arguments.full else arguments.trl_steps
    more = {"threads": arguments.threads, "target": arguments.target, "pass": arguments.trl_pass}
    setting = setting_of(experiment, steps=steps, validate_every=every, **more)
    with tempfile.TemporaryDirectory() as folder:
        mine = ours(arguments.threads, Path(folder) / "runs")
        peer = theirs(setting, Path(folder))
    print(f"\n{'':6} {'s a step':>10} {'peak GiB':>10} {'steps':>6} {f's to {arguments.target}':>16}")
    print(mine.line("ajet", arguments.target))
    print(peer.line("TRL", arguments.target))
    speed, memory = peer.step / mine.step, mine.peak_bytes / peer.peak_bytes
    print(f"speed a step: {speed:.1f} times TRL's (at least {SPEED_LIMIT})")
    print(f"memory: {memory:.2f} of TRL's (at most {MEMORY_LIMIT})")
    fast = kept("speed a step against TRL's", speed, at_least=SPEED_LIMIT)
    sys.exit(not (kept("memory against TRL's", memory, at_most=MEMORY_LIMIT) and fast))


if __name__ == "__main__":
    main()
