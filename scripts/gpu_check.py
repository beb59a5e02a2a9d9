"""What only a GPU shows, tried on one, with a report to paste: `make gpu-check`.

    python scripts/gpu_check.py                         all checks
    python scripts/gpu_check.py --only local prove      some, in this order
    python scripts/gpu_check.py --model Qwen/Qwen2.5-1.5B-Instruct
    python scripts/gpu_check.py --device cpu            whether the checks themselves work: proves nothing of a GPU

Invariant: a check has passed when its commands ended as they should and what they left on the disk says what it is
for; nothing is taken from what a command prints of itself. A check whose GPUs or packages are not there is not tried,
and said. What no check reaches stands in gpu_places.py without one (tests/scripts/test_gpu_check.py holds its tables
against the code). Exit code: 1 where a check failed.
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
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu_places import COVERED, KEYS

ROOT = Path(__file__).resolve().parents[1]
AJET = (sys.executable, "-m", "ajet")
TOOL = ("--conf", "ajet/cli/templates/tool/tool.yaml")
"""A small model that learns from the first step on."""
GSM8K = (
    "--conf",
    "tutorial/example_math_agent/math_agent.yaml",
    "rollout.user_workflow=tutorial/example_math_agent/workflow_openai_sdk.py->MathAgentWorkflow",
    "rollout.max_model_len=3072",
    "rollout.max_response_length_in_one_turn=512",
    "rollout.temperature=1.0",
    "data.max_prompt_length=1024",
    "data.max_response_length=2048",
    "data.train_batch_size=16",
    "trainer_common.gradient_checkpointing=true",
    "trainer_common.use_kl_loss=false",
)
"""An agent that may run Python, on the hub's GSM8K (`dataset_path: gsm8k/main`, in the YAML)."""
SHORT = ("trainer_common.val_before_train=false", "trainer_common.test_freq=2", "trainer_common.save_freq=1")
LORA = "trainer_common.lora.rank=8"
TRINITY = "trinity-rft"
BENCHMARKS = ("engine", "limit", "vllm", "memory")
"""Those that measure the GPU: by --device, or as a run chooses it."""
SHOWN = 15
"""Last lines of a failed check's output in the report."""


@dataclass(frozen=True)
class Check:
    """One thing that only a GPU shows."""

    name: str
    what: str
    commands: tuple[tuple[str, ...], ...]
    holds: Callable[[Path], str]
    """Of the folder of runs: "" where it says what the check is for, else what is missing."""
    gpus: int = 0
    """How many it needs; 0: it works without one, too."""
    packages: tuple[str, ...] = ()
    """By their names in an index: what `make setup` does not bring, and the check needs."""

    def lacks(self, gpus: int) -> str:
        """Why it can't be tried where there are so many; "" where it can."""
        absent = [name for name in self.packages if not _installed(name)]
        few = [f"{self.gpus} GPU{'s' * (self.gpus != 1)}"] if gpus < self.gpus else []
        return " and ".join([*few, *absent])


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
    one, two = ("trainer_common.n_gpus_per_node=1",), ("trainer_common.n_gpus_per_node=2",)
    real = (f"model.path={model}", "trainer_common.test_freq=-1", "trainer_common.save_freq=1000")
    resumed = trained("local", "local", steps(3), "--resume", str(runs / "local"))
    machine = (sys.executable, "benchmarks/bench_machine.py")
    exported = ajet("export", "local", *at, "--step", "2", "--check")
    # AJET_TEST_DEVICE: on the CPU the tests would be left out
    where = ("env", "AJET_TEST_DEVICE=cpu") if device == "cpu" else ()
    tests = (*where, sys.executable, "-m", "pytest", "-q", "-n0", "tests/contract/test_on_a_gpu.py")
    here = [
        Check("doctor", "what the machine has", (ajet("doctor"),), nothing_more),
        Check("speed", "what the device keeps up", (machine,), nothing_more),
        Check("tests", "replies and updates on the device against the CPU's", (tests,), nothing_more),
        Check("local", "two steps, rehearsed first", (trained("local", "local", steps(2)),), steps_of("local", 2)),
        Check("resume", "the checkpoint, with the device's generator: a third step", (resumed,), steps_of("local", 3)),
        Check("prove", "tokens and distributions derived again", (ajet("prove", "local", *at),), nothing_more),
        Check("export", "the checkpoint as transformers alone loads it", (exported,), nothing_more),
        Check("lora", "two steps with an adapter", (trained("lora", "local", steps(2), LORA),), steps_of("lora", 2)),
    ]
    beside = trained("beside", "local", steps(2), "trainer_common.mode=async")
    vllm = (trained("vllm", "local", steps(2), "rollout.engine=vllm"), ajet("prove", "vllm", *at))

    def on_verl(name: str, *more: str, conf: Sequence[str] = TOOL) -> tuple[str, ...]:
        return trained(name, "verl", steps(2), "--with-ray", *more, conf=conf)

    verl = (on_verl("verl", *one), ajet("prove", "verl", *at))
    trees = (on_verl("trees", *one, "actor_rollout_ref.ajet_trees=true"),)
    sglang = (on_verl("sglang", *one, "rollout.name=sglang"), ajet("prove", "sglang", *at))
    trinity = (trained("trinity", "trinity", steps(2), "--with-ray", *two), ajet("prove", "trinity", *at))
    split = ("rollout.tensor_model_parallel_size=2", "trainer_common.ulysses_sequence_parallel_size=2")
    several = ((*machine, "--world-size", "2"), on_verl("several", *two, *split))
    megatron = tuple(
        on_verl(
            f"megatron-{part}", *two, *real, "trainer_common.strategy=megatron",
            f"trainer_common.megatron.{part}_parallel_size=2", conf=GSM8K,
        )
        for part in ("tensor_model", "pipeline_model", "context")
    )  # fmt: skip
    each_way = (steps_of(f"megatron-{part}", 2) for part in ("tensor_model", "pipeline_model", "context"))
    gsm8k = (
        trained("gsm8k", "local", steps(10), *real, conf=GSM8K),
        trained("gsm8k-verl", "verl", steps(3), "--with-ray", *one, *real, conf=GSM8K),
    )
    both = each_of(steps_of("gsm8k", 10), steps_of("gsm8k-verl", 3))
    ratios = ((sys.executable, "scripts/bench.py", "--device", "cuda", "--only", *BENCHMARKS),)
    there = [
        Check("vllm", "vLLM in place: weights by CUDA IPC, graphs, its memory", vllm, steps_of("vllm", 2), 1),
        Check("beside", "a sampler beside the trainer, on one device", (beside,), steps_of("beside", 2), 1),
        Check("verl", "Ray, vLLM and FSDP: weights handed over, servers that sleep", verl, steps_of("verl", 2), 1),
        Check("trees", "what rows share computed once, in verl's FSDP engine", trees, steps_of("trees", 2), 1),
        Check("sglang", "verl with SGLang", sglang, steps_of("sglang", 2), 1, ("sglang",)),
        Check("several", "NCCL; vLLM and Ulysses over two GPUs", several, steps_of("several", 2), 2),
        Check("megatron", "Megatron's TP, PP and CP over two", megatron, each_of(*each_way), 2, ("megatron-core",)),
        Check("trinity", "Trinity's explorer and trainer", trinity, steps_of("trinity", 2), 2, (TRINITY,)),
        Check("gsm8k", f"{model} on GSM8K by hub name: ten steps on local, three on verl", gsm8k, both, 1),
        Check("bench", "ratios on the GPU, kept in benchmarks/results", ratios, nothing_more, 1),
    ]
    return here + there


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
        count = 0 if options.device == "cpu" else gpus_here()
        lacking = {check.name: lacks for check in chosen if (lacks := check.lacks(count))}
        chosen = [check for check in chosen if check.name not in lacking]
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
    lines += [*failures, "", *not_tried({check.name for check in chosen}, lacking)]
    options.report.write_text("\n".join(lines) + "\n")
    print(f"the report is in {options.report}")
    return int(bool(failures))


def not_tried(tried: set[str], lacking: dict[str, str]) -> list[str]:
    """What the report says of checks that were left out, and of what no check that ran reaches."""
    lines = ["Not tried:", "", *(f"- the check `{name}`, for want of {lacks}" for name, lacks in lacking.items())]
    for place, by in (KEYS | COVERED).items():
        if "/" not in by and by not in tried:  # a path is of a test that runs without a GPU
            lines.append(f"- {place}: {f'by `{by}` alone' if by else 'by no check'}")
    return lines


def gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def _installed(name: str) -> bool:
    """Trinity may lie aside, or in an environment of its own, in which its commands go on."""
    from ajet_trinity.launch import find_python
    from ajet_trinity.package import OWN_FOLDER, find_version

    if name == TRINITY and (find_python("cuda") is not None or find_version(Path(sys.prefix) / OWN_FOLDER)):
        return True
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


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
