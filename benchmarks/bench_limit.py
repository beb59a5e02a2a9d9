"""How far rollout, update, logprobs and weights hand-over are from what this machine can do.

The limit is measured in the same run, with the same threads and number format, between the phases: the best of the
library's square matrix products over sizes, and a STREAM triad. From the two and the model's dimensions follows the
least time of a phase: operations at the one, bytes at the other, whichever is longer (benchmarks/bounds.py; an
update's two parts, products and optimizer, come one after the other). Beside it stand what the processor could do by
its data sheet (processor_peak.py), torch's fused attention with the model's heads, and what torch's linear takes for
the same products alone, at the model's shapes, out of weights that no cache holds: the share that a phase reaches of
that is what bench_machine.py expects by. Rounds are interleaved; a ratio is the median of the rounds' own.

Rollout: 64 prompts of 75 tokens that share nothing, 32 new tokens each. Update and logprobs: the addition task's step,
8 prompts of 75 tokens and 8 replies of 15 to each. Hand-over: with the engine of this process nothing is copied; with
--vllm, vLLM's copy is refreshed, for which each weight is read once and written once. On a busy machine
--processor-time counts a phase's own processor time; the limit's pieces are short enough to find the processor free in
one of their rounds. Limits: 0.6 of the bound for rollout, 0.7 for the update.

    python benchmarks/bench_limit.py [--model embedded:smollm2-135m] [--dtype bfloat16] [--threads 2] [--rounds 5]
                                     [--device cuda] [--processor-time] [--profile] [--vllm]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import bounds as least
import psutil
import torch
from bench_engine import by_engine
from bench_memory import ADDITION, GROUPS, PROMPT, REPEATS, REPLY, Peak, batch
from bounds import Pace
from ceiling import attention_pace, matmul_pace, sampling_alone, triad_pace, update_alone
from processor_peak import peak_of
from ratios import kept

from ajet.backbone.local.machine import bound_kernel_caches, choose_device
from ajet.backbone.local.trainer import Trainer
from ajet.config import load_experiment
from ajet.engine.dimensions import Dimensions, read_dimensions, read_model_size
from ajet.engine.drivers import find_driver
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model, prepare_folder
from ajet.record.console import format_bytes
from ajet.train.footprint import estimate_footprint

ROWS, NEW = 64, 32
TRAINED = GROUPS * REPEATS * REPLY
COMPUTED = GROUPS * (PROMPT + REPEATS * REPLY)
"""Tokens of a step that have logits, and all that go through the model: prompts once a group."""
ATTENDED = 1024
"""Tokens over which attention is measured, as bench_machine.py does."""
ROLLOUT_LIMIT, UPDATE_LIMIT = 0.6, 0.7


class Phase:
    """Its seconds, round by round, and the least that they can be."""

    clock = staticmethod(time.perf_counter)

    def __init__(self, name: str, tokens: int, run: Callable[[], object], bound: Callable[[Pace], float]) -> None:
        self.name, self.tokens, self.run, self.bound = name, tokens, run, bound
        self.seconds: list[float] = []
        self.shares: list[float] = []

    def once(self, pace: Pace) -> None:
        began = self.clock()
        self.run()
        if torch.cuda.is_initialized():  # its queue may be longer than the call
            torch.cuda.synchronize()
        self.seconds.append(self.clock() - began)
        self.shares.append(self.bound(pace) / self.seconds[-1])

    def __str__(self) -> str:
        took = statistics.median(self.seconds)
        share = statistics.median(self.shares)
        spread = f"{min(self.shares):.2f} to {max(self.shares):.2f}"
        return f"{self.name:10} {took:7.3f} s {self.tokens / took:8,.0f} tok/s   {share:.2f} of the bound ({spread})"


def phases(trainer: Trainer, engine: Any, of: Dimensions, vocabulary: int) -> list[Phase]:
    """What is measured."""
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, vocabulary, (PROMPT,), generator=draw, dtype=torch.int32).numpy() for _ in range(ROWS)]
    width = trainer.policy.weights.values.element_size()
    step = [0]

    def update() -> None:
        step[0] += 1
        with engine.paused():
            trainer.update(batch(step[0], vocabulary))

    def hand_over() -> None:
        engine.weights_changed(trainer.version)

    given = batch(0, vocabulary)

    def score() -> None:
        with engine.paused():
            trainer.logprobs(given.samples)

    bound: dict[str, Callable[[Pace], float]] = {
        "rollout": lambda pace: least.sampling_seconds(
            of, pace, rows=ROWS, prompt=PROMPT, new=NEW, bytes_each=width
        ),
        "update": lambda pace: least.update_seconds(
            of, pace, tokens=COMPUTED, wanted=TRAINED, longest=PROMPT + REPLY, bytes_each=width
        ),
        "logprobs": lambda pace: least.scoring_seconds(
            of, pace, tokens=COMPUTED, wanted=TRAINED, longest=PROMPT + REPLY
        ),
    }  # fmt: skip
    return [
        Phase("rollout", ROWS * NEW, lambda: by_engine(engine, prompts, [NEW] * ROWS), bound["rollout"]),
        Phase("update", TRAINED, update, bound["update"]),
        Phase("logprobs", TRAINED, score, bound["logprobs"]),
        Phase("hand-over", 0, hand_over, lambda pace: copy_seconds(trainer.policy.weights.values.nbytes, pace)),
    ]


def copy_seconds(size: int, pace: Pace) -> float:
    """The least that a copy of so many bytes takes: read once and written once, counted as the triad counts."""
    return 2 * size / pace.bandwidth


def profiled(phase: Phase) -> None:
    """Where its time goes, by torch's operators. The engine computes in a thread of its own, which torch's
    profiler leaves out where it is not told otherwise."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    everywhere = _ExperimentalConfig(profile_all_threads=True)
    on_gpu = torch.cuda.is_initialized()
    both = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with profile(activities=both, experimental_config=everywhere) as seen:
        phase.run()
        if on_gpu:
            torch.cuda.synchronize()
    for what in ("self_cpu_time_total", *["self_device_time_total"] * on_gpu):
        rows = sorted(seen.key_averages(), key=lambda row: -getattr(row, what))
        whole = sum(getattr(row, what) for row in rows) or 1
        print(f"\n{phase.name}, by operator ({what.split('_')[1]}: own time, of {whole / 1e6:.2f} s):")
        for row in rows[:12]:
            print(f"  {getattr(row, what) / whole:6.1%} {row.count:7}  {row.key}")


def main() -> int:
    """Print a line a phase; 1 where one is below its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--device", default="cpu", help="cuda: the GPU's own limit, and how far from it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true", help="with one thread, on a busy machine")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--vllm", action="store_true", help="sample with vLLM in processes of its own")
    args = parser.parse_args()
    if args.processor_time:
        if args.threads != 1 or args.vllm or args.device != "cpu":
            parser.error("--processor-time is of one thread of this process: --threads 1, no --vllm, on the CPU")
        Phase.clock = staticmethod(time.process_time)
    device = choose_device(args.device)
    bound_kernel_caches()
    torch.set_num_threads(args.threads)
    engine_name = "vllm" if args.vllm else "transformers"
    overrides = [
        f"ajet.model.path={args.model}",
        f"ajet.model.dtype={args.dtype}",
        f"ajet.rollout.engine={engine_name}",
        f"ajet.trainer_common.device={args.device}",
    ]
    overrides += ["ajet.rollout.max_num_seqs=64", "ajet.trainer_common.optim.lr=1e-7"]
    config = load_experiment(ADDITION, backbone="local", overrides=overrides).ajet
    source = locate_model(args.model)
    folder = prepare_folder(source)
    of, size = read_dimensions(folder), read_model_size(folder)
    assert of is not None and size is not None, "no dense decoder, or one whose files do not say its dimensions"
    dtype = getattr(torch, args.dtype)
    trainer = Trainer(load_model(source, dtype=dtype, device=device), config)
    engine = find_driver(config).open_trained(config, source, trainer.policy.model, trainer.policy.changed, None)
    todo = phases(trainer, engine, of, of.vocabulary)
    paces: list[Pace] = []
    with Peak() as peak:
        for phase in todo:
            phase.run()  # warms up
        for turn in range(args.rounds):
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
            for phase in todo:
                product, at = matmul_pace(dtype, device, budget=1.0)
                paces.append(Pace(product, triad_pace(device, budget=0.5)))
                phase.once(paces[-1])
    load = os.getloadavg()[0]
    product, moved = (statistics.median(values) for values in zip(*paces, strict=True))
    where = f"{args.threads} of {psutil.cpu_count()} cores"
    if device.type == "cuda":
        where, peak.bytes = torch.cuda.get_device_name(device), torch.cuda.max_memory_allocated(device)
    print(f"{args.model} {args.dtype}, {where}, load {load:.1f}, {engine_name}")
    print(f"this machine: {product / 1e9:,.0f} GFLOP/s (best square product, {at}), {moved / 1e9:.1f} GB/s (triad)")
    sheet = peak_of(dtype, device, args.threads)
    if sheet is None:
        print("its peak by the data sheet: not known of this processor")
    else:
        share = f"of which that is {product / sheet.flops:.2f}"
        print(f"its peak by the data sheet: {sheet.flops / 1e9:,.0f} GFLOP/s, {share}: {sheet.how}")
        if product > sheet.flops:
            print("(more than the peak: the processor's clock is above what the system tells)")
    attended = attention_pace(of, dtype, device, length=ATTENDED, budget=1.0)
    print(f"torch's fused attention over {ATTENDED:,} tokens, with the model's heads: {attended / 1e9:,.0f} GFLOP/s")
    for phase in todo[: 3 if not args.vllm else 4]:
        print(phase)
    if not args.vllm:
        print(f"{todo[3].name:10} {statistics.median(todo[3].seconds) * 1e3:7.1f} ms: nothing is copied")
    alone = {
        "rollout": sampling_alone(of, dtype, device, rows=ROWS, prompt=PROMPT, new=NEW, budget=2.0),
        "update": update_alone(of, dtype, device, tokens=COMPUTED, wanted=TRAINED, budget=2.0),
    }
    for phase in todo[:2]:
        share = alone[phase.name] / statistics.median(phase.seconds)
        kept(f"{phase.name} against torch's own linear alone", share)
        print(f"{phase.name:10} torch's own linear alone, at its shapes: {alone[phase.name]:.2f} s, {share:.2f} of it")
    told = estimate_footprint(size, config, wide=args.dtype == "float32", context=PROMPT + NEW)
    estimated = format_bytes(told.peak)
    print(f"memory: {format_bytes(peak.bytes)} at its peak; `ajet plan` and bench_machine.py say {estimated}")
    if args.profile:
        for phase in todo[:3]:
            profiled(phase)
    engine.close()
    shares = {phase.name: statistics.median(phase.shares) for phase in todo}
    within = [
        kept("rollout at 64 against the bound", shares["rollout"], at_least=ROLLOUT_LIMIT),
        kept("update against the bound", shares["update"], at_least=UPDATE_LIMIT),
        kept("logprobs against the bound", shares["logprobs"]),
    ]
    return int(not all(within))


if __name__ == "__main__":
    sys.exit(main())
