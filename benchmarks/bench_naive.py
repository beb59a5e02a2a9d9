"""Naive: the addition task against the loop a person writes first: seconds from the start of the process to an
accuracy.

Both have the same model folder, tasks, held-out problems, batch and threads, and take turns: one runs for
`--slice` seconds while the other is stopped, so that the machine's other work falls on both alike. What counts is
the time that each ran. Loading the model and every validation are in it. Limit: at most two thirds.

    python benchmarks/bench_naive.py [--target 0.8] [--slice 10] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from bench_learn import ADDITION, setting_of
from ratios import kept

from ajet.config import load_experiment

LIMIT = 2 / 3
ROOT = Path(__file__).parents[1]


class Runner:
    """A process that runs and rests, the seconds it ran, and the accuracies that it told of."""

    def __init__(self, name: str, command: list[str], accuracy: Callable[[str], float | None]) -> None:
        self.name, self._accuracy = name, accuracy
        self.accuracies: list[tuple[float, float]] = []
        self._ran, self._since = 0.0, time.monotonic()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def run(self, seconds: float, until: float) -> None:
        """Let it run for a while, or to the accuracy, or to its end."""
        self._since = time.monotonic()
        os.killpg(self.process.pid, signal.SIGCONT)
        while time.monotonic() - self._since < seconds and not self.over(until):
            time.sleep(0.05)
        self._ran += time.monotonic() - self._since
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def over(self, target: float) -> bool:
        """True when it has the accuracy, or ended."""
        return self.time_to(target) is not None or self.process.poll() is not None

    def time_to(self, target: float) -> float | None:
        """Seconds that it had run when it first told of `target` or more."""
        return next((seconds for seconds, accuracy in list(self.accuracies) if accuracy >= target), None)

    def end(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = self._accuracy(line)
            if found is not None:
                ran = self._ran + time.monotonic() - self._since
                self.accuracies.append((ran, found))
                print(f"{self.name:6} {ran:6.0f} s  held out {found:.2f}", flush=True)


def of_ajet(line: str) -> float | None:
    """From the run's plain lines."""
    found = re.search(r"held out: reward ([\d.]+)", line)
    return float(found[1]) if found else None


def of_naive(line: str) -> float | None:
    """From its JSON lines."""
    row = json.loads(line) if line.startswith("{") else {}
    return row.get("accuracy")


def main() -> None:
    """Print the ratio; exit 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--slice", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=40, help="of the naive loop at most; ajet has the addition task's")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    arguments = parser.parse_args()
    experiment = load_experiment(ADDITION, backbone="local")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "setting.json"
        setting = setting_of(experiment, steps=arguments.steps, threads=arguments.threads)
        file.write_text(json.dumps(setting))
        ajet = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(ADDITION), "--backbone", "local"]
        ajet += ["trainer_common.device=cpu"]  # where the naive loop computes
        ajet += ["--exp-dir", folder, "--fresh", f"trainer_common.threads={arguments.threads}"]
        naive = [sys.executable, str(ROOT / "benchmarks" / "peers" / "naive_grpo.py"), str(file)]
        runners = [Runner("ajet", ajet, of_ajet), Runner("naive", naive, of_naive)]
        try:
            while not all(runner.over(arguments.target) for runner in runners):
                for runner in runners:
                    if not runner.over(arguments.target):
                        runner.run(arguments.slice, arguments.target)
        finally:
            for runner in runners:
                runner.end()
    mine, theirs = (runner.time_to(arguments.target) for runner in runners)
    if mine is None or theirs is None:
        names = [runner.name for runner in runners if runner.time_to(arguments.target) is None]
        sys.exit(f"no ratio: {' and '.join(names)} did not reach {arguments.target}")
    print(
        f"ajet {mine:.0f} s, naive loop {theirs:.0f} s to {arguments.target}: {mine / theirs:.2f} (at most {LIMIT:.2f})"
    )
    sys.exit(not kept(f"seconds to {arguments.target} against a naive loop", mine / theirs, at_most=LIMIT))


if __name__ == "__main__":
    main()
