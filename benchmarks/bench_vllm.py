"""Engine: sampled tokens a second against vLLM's, on this machine, in turns.

The same weights, number format, threads, prompts, lengths and draws: ajet's engine in this process, and vLLM in child
processes of it, as `rollout.engine: vllm` runs it (its sampler is ours, so that both give the same two logprobs a
token; on a CPU it runs eager). A side's processor time is that of this process and of all its children. What either
keeps of prefixes is dropped before each turn. Ratios are medians of the turns' own, ours to theirs in tokens a second:
of processor time on a CPU, by the clock on a GPU. Limit: never slower for a model of up to 0.5 billion weights.

    python benchmarks/bench_vllm.py [--model embedded:smollm2-135m] [--dtype bfloat16] [--threads 1] [--rounds 3]
                                    [--batches 1 16 64] [--new-tokens 32] [--device cuda]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import psutil
import torch
from bench_engine import PROMPT, by_engine
from ratios import kept

from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model, prepare_folder
from ajet.engine.transformers import TransformersEngine
from ajet_vllm.driver import load_engine
from ajet_vllm.launch import VllmLaunch


def spent() -> float:
    """Seconds of processor time of this process and of all below it."""
    me = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in [me, *me.children(recursive=True)])


def turn(engine: Any, prompts: list[Any], new: int) -> tuple[float, float]:
    """Seconds by the clock, and of processor time."""
    before = spent()
    took = by_engine(engine, prompts, [new] * len(prompts))
    return took, spent() - before


def main() -> int:
    """Print a line a case; 1 where ours is slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--new-tokens", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source, dtype = locate_model(args.model), getattr(torch, args.dtype)
    model = load_model(source, dtype=dtype, device=args.device)
    most, length = max(args.batches), PROMPT + args.new_tokens
    ours = TransformersEngine(model, max_num_seqs=most, max_model_len=length)
    began, used = time.perf_counter(), spent()
    folder, device = prepare_folder(source), torch.device(args.device)
    theirs = load_engine()(VllmLaunch(folder, dtype, device, most, length, threads=args.threads))
    started = time.perf_counter() - began, spent() - used
    where = f"{args.model} {args.dtype} {args.device}, {args.threads} threads"
    print(f"{where}, prompts of {PROMPT} tokens, {args.new_tokens} new ones")
    print(f"vLLM took {started[0]:.0f} s to start, {started[1]:.0f} s of processor time")
    draw, vocabulary = np.random.default_rng(0), int(model.config.get_text_config().vocab_size)
    within = True
    try:
        for batch in args.batches:
            prompts = [draw.integers(0, vocabulary, PROMPT).astype(np.int32) for _ in range(batch)]
            for engine in (ours, theirs):
                turn(engine, prompts, args.new_tokens)  # warms up
            rows = [[turn(engine, prompts, args.new_tokens) for engine in (ours, theirs)] for _ in range(args.rounds)]
            clock, processor = (statistics.median(b[k] / a[k] for a, b in rows) for k in (0, 1))
            each = [statistics.median(row[side][1] for row in rows) for side in (0, 1)]
            tokens = batch * args.new_tokens
            print(
                f"batch {batch:3}: {tokens / each[0]:6.0f} tokens a second of processor time, vLLM "
                f"{tokens / each[1]:6.0f}; ours {processor:.2f} times as many, {clock:.2f} by the clock "
                f"(load {os.getloadavg()[0]:.0f})",
                flush=True,
            )
            how, ratio = ("of processor time", processor) if args.device == "cpu" else ("by the clock", clock)
            within &= kept(f"tokens a second {how} against vLLM, batch {batch}", ratio, at_least=1.0)
    finally:
        theirs.close()
        ours.close()
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
