"""What only a GPU shows, tried on one, with a report to paste: `make gpu-check`.

    python scripts/gpu_check.py                         all checks
    python scripts/gpu_check.py --only local prove      some, in this order
    python scripts/gpu_check.py --model Qwen/Qwen2.5-1.5B-Instruct
    python scripts/gpu_check.py --device cpu            whether the checks themselves work: proves nothing of a GPU

Invariant: a check has passed when its commands ended as they should and what they left on the disk says what it is
for; nothing is taken from what a command prints of itself. What no check reaches stands in `COVERED` without one
(tests/unit/test_gpu_check.py holds that table against the code). Exit code: 1 where a check failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

AJET = (sys.executable, "-m", "ajet")
TOOL = ("--conf", "ajet/cli/templates/tool/tool.yaml")
"""A small model that learns from the first step on."""
QUICKSTART = ("--conf", "tutorial/quickstart/quickstart.yaml")
SHORT = ("trainer_common.val_before_train=false", "trainer_common.test_freq=2", "trainer_common.save_freq=1")
LORA = "trainer_common.lora.rank=8"
SHOWN = 15
"""Last lines of a failed check's output in the report."""

COVERED = {
    "ajet/backbone/local/checkpoint.py::_tensors": "local",
    "ajet/engine/all_reduce.py::main": "",  # several GPUs
    "ajet/engine/ceiling.py::_finish": "speed",
    "ajet/backbone/local/checkpoint.py::read": "resume",
    "ajet/backbone/local/machine.py::choose_device": "local",
    "ajet/backbone/local/rehearsal.py::_peak": "local",
    "ajet/backbone/local/rehearsal.py::rehearsed": "local",
    "ajet/backbone/local/trainer.py::Trainer.rehearse": "local",
    "ajet/backbone/trinity/config.py::device_of": "trinity",
    "ajet/backbone/trinity/own_environment.py::python_there": "",  # once `make trinity-gpu` has run, which nobody has
    "ajet/backbone/trinity/train.py::train_on_trinity": "trinity",
    "ajet/backbone/verl/config/refusals.py::_machines": "verl",
    "ajet/backbone/verl/cpu/__init__.py::environment": "",  # of the CPU alone
    "ajet/backbone/verl/settings.py::_device": "verl",
    "ajet/backbone/verl/settings.py::verl_settings": "verl",
    "ajet/backbone/verl/train.py::train_on_verl": "verl",
    "ajet/engine/agreed.py::key_of": "local",
    "ajet/engine/fresh.py::FreshModel.__init__": "export",
    "ajet/engine/machine.py::device_kind": "local",
    "ajet/engine/machine.py::float32_is_usual": "local",
    "ajet/engine/machine.py::free_memory": "local",
    "ajet/engine/models.py::fast_dtype": "local",
    "ajet/engine/sampler.py::machine_of": "local",
    "ajet/engine/transformers/engine.py::_default_cache": "local",
    "ajet/engine/vllm/__init__.py::__getattr__": "",  # which extra is named where vLLM is not installed
    "ajet/engine/vllm/launch.py::memory": "vllm",
    "ajet/engine/vllm/weights.py::device_buckets": "vllm",
    "ajet/engine/vllm/worker.py::LiveWeights.ajet_commit": "vllm",
    "ajet/run/cluster/job.py::ClusterJob": "",  # written for a cluster, run on none
    "ajet/run/cluster/kuberay.py::_RESOURCES": "",
    "ajet/run/cluster/slurm.py::_accelerators": "",
}
"""Every place in ajet/ that names CUDA, and the check that runs it; "": none does."""
UNCHECKED = (
    "more than one GPU: rollout.tensor_model_parallel_size, FSDP over several, Ulysses sequence parallelism",
    "trainer_common.megatron.*: tensor, pipeline, context and expert parallelism",
    "rollout.name: sglang",
    "Ascend NPUs",
)
"""What has a key and no check."""


@dataclass(frozen=True)
class Check:
    """One thing that only a GPU shows."""

    name: str
    what: str
    commands: tuple[tuple[str, ...], ...]
    holds: Callable[[Path], str]
    """Of the folder of runs: "" where it says what the check is for, else what is missing."""
    gpu: bool = False
    """Whether it makes no sense without one."""


def steps_of(run: str, steps: int) -> Callable[[Path], str]:
    """That many training steps are recorded, each once, with gradients."""

    def holds(folder: Path) -> str:
        from ajet.record.files import read_rows

        rows = [row for row in read_rows(folder / run / "metrics.jsonl") if "tasks" in row]
        if [row["step"] for row in rows] != list(range(1, steps + 1)):
            return f"steps {[row['step'] for row in rows]}, not 1 to {steps}"
        if not all(row["train/sampled_tokens"] for row in rows):
            return "a step has sampled nothing"
        return "" if any(row.get("grad_norm", 0) > 0 for row in rows) else "no step has a gradient"

    return holds


def each_of(*held: Callable[[Path], str]) -> Callable[[Path], str]:
    """The first that is missing."""
    return lambda folder: next(filter(None, (holds(folder) for holds in held)), "")


def nothing_more(folder: Path) -> str:
    """The commands' exit codes are all."""
    return "" if folder.exists() else "the folder of runs is gone"


def checks(runs: Path, device: str, model: str) -> list[Check]:
    """All, in the order in which they build on each other."""

    def ajet(*words: str) -> tuple[str, ...]:
        return (*AJET, *words)

    def trained(name: str, backbone: str, *more: str, conf: Sequence[str] = TOOL) -> tuple[str, ...]:
        chosen = () if device == "auto" else (f"trainer_common.device={device}",)
        named = f"experiment_name={name}"
        return ajet(*conf, "--backbone", backbone, "--exp-dir", str(runs), named, *SHORT, *chosen, *more)

    def steps(count: int) -> str:
        return f"trainer_common.total_training_steps={count}"

    at = ("--exp-dir", str(runs))
    real = (f"model.path={model}", "rollout.max_model_len=512", "data.max_prompt_length=256")
    resumed = trained("local", "local", steps(3), "--resume", str(runs / "local"))
    speed = ajet("doctor", "--bench")
    exported = ajet("export", "local", *at, "--step", "2", "--check")
    suite = ("tests/contract/test_token_engines.py", "tests/unit/test_local_trainer.py", "tests/unit/test_rehearsal.py")
    here = [
        Check("doctor", "what the machine has", (ajet("doctor"),), nothing_more),
        Check("speed", "what the device keeps up", (speed,), nothing_more),
        Check("local", "two steps, rehearsed first", (trained("local", "local", steps(2)),), steps_of("local", 2)),
        Check("resume", "the checkpoint, with the device's generator: a third step", (resumed,), steps_of("local", 3)),
        Check("prove", "tokens and distributions derived again", (ajet("prove", "local", *at),), nothing_more),
        Check("export", "the checkpoint as transformers alone loads it", (exported,), nothing_more),
        Check("lora", "two steps with an adapter", (trained("lora", "local", steps(2), LORA),), steps_of("lora", 2)),
    ]
    beside = (trained("vllm", "local", steps(2), "rollout.engine=vllm"), ajet("prove", "vllm", *at))
    verl = (trained("verl", "verl", steps(2), "--with-ray"), ajet("prove", "verl", *at))
    trinity = (trained("trinity", "trinity", steps(2), "--with-ray"), ajet("prove", "trinity", *at))
    larger = (
        trained("model", "local", steps(10), *real, conf=QUICKSTART),
        trained("model-verl", "verl", steps(3), "--with-ray", *real, conf=QUICKSTART),
    )
    both = each_of(steps_of("model", 10), steps_of("model-verl", 3))
    tests = ((sys.executable, "-m", "pytest", "-q", "-n0", *suite),)
    ratios = ((sys.executable, "scripts/bench.py", "--only", "engine", "memory", "learn"),)
    there = [
        Check("vllm", "vLLM beside the trainer: weights by CUDA IPC, graphs, its memory", beside, steps_of("vllm", 2)),
        Check("verl", "Ray, vLLM and FSDP: weights handed over, servers that sleep", verl, steps_of("verl", 2)),
        Check("trinity", "Trinity's explorer and trainer, where installed", trinity, steps_of("trinity", 2)),
        Check("model", f"{model}: sums, ten steps on local, three on verl", larger, both),
        Check("tests", "the contract of engines, the trainer's own tests", tests, nothing_more),
        Check("bench", "ratios, kept in benchmarks/results", ratios, nothing_more),
    ]
    return here + [replace(check, gpu=True) for check in there]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="CHECK")
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct", help="by hub name or folder")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--report", type=Path, default=Path("gpu_check.md"))
    parser.add_argument("--limit", type=float, default=3600, help="seconds a command may take")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gpu_check_") as folder:
        runs = Path(folder) / "runs"
        runs.mkdir()
        every = {check.name: check for check in checks(runs, options.device, options.model)}
        if unknown := sorted(set(options.only or ()) - set(every)):
            parser.error(f"no such check: {', '.join(unknown)}; there are {', '.join(every)}")
        chosen = [every[name] for name in options.only or every]
        if options.device == "cpu":
            chosen = [check for check in chosen if not check.gpu]
        lines = [*heading(options.device), "| Check | What | Result | Seconds |", "|---|---|---|---|"]
        failures: list[str] = []
        for check in chosen:
            print(f"== {check.name}: {check.what}", flush=True)
            began = time.monotonic()
            wrong, end = tried(check, runs, options.limit)
            lines.append(f"| {check.name} | {check.what} | {wrong or 'passed'} | {time.monotonic() - began:.0f} |")
            if wrong:
                failures += ["", f"{check.name}: {wrong}", "", "```text", *end, "```"]
            print(f"== {check.name}: {wrong or 'passed'}", flush=True)
    left = [f"- {place}" for place, name in COVERED.items() if name not in {check.name for check in chosen}]
    lines += failures + ["", "Not tried:", "", *left, *(f"- {each}" for each in UNCHECKED)]
    options.report.write_text("\n".join(lines) + "\n")
    print(f"the report is in {options.report}")
    return int(bool(failures))


def tried(check: Check, runs: Path, limit: float) -> tuple[str, list[str]]:
    """What is wrong, "" for nothing, and the end of what the last command printed."""
    end: list[str] = []
    for command in check.commands:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # engines and workers that it started, too: they hold its output
            said, _ = process.communicate()
            return f"no end after {limit:.0f} s: {' '.join(command[1:5])} …", said.splitlines()[-SHOWN:]
        print(said, flush=True)
        end = said.splitlines()[-SHOWN:]
        if process.returncode:
            return f"exit code {process.returncode}: {' '.join(command[1:5])} …", end
    return check.holds(runs), end


def heading(device: str) -> list[str]:
    """Where this was."""
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    packages = []
    for name in ("ajet", "torch", "transformers", "vllm", "verl", "ray"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"no {name}")
    where = ", ".join(names) if names and device != "cpu" else "no GPU: this shows only that the checks work"
    said = f"{where}; {', '.join(packages)}; Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    return ["# GPU check", "", said, ""]


if __name__ == "__main__":
    sys.exit(main())
