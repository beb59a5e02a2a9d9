"""Engine: sampled tokens a second against transformers' own `generate`.

Same weights, type, threads, prompts and number of new tokens; both draw at temperature 1. Both sides take turns and
the best of each counts. `generate` gets every advantage of a fixed batch: it runs it as one, left-padded where
lengths differ, and is asked for no logprobs; the engine returns two kinds of them. Limits: at least 1.0 with equal
lengths and unshared prompts at batch 1, 16 and 64; at least 1.3 for 64 = 8 prompts x 8 samples whose replies end at
lengths spread 1:8 (`generate` goes on until the longest has ended).

    python benchmarks/bench_engine.py [--model embedded:smollm2-135m] [--dtype bfloat16] [--device cpu] [--threads 2]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from ratios import kept

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model
from ajet.engine.transformers import TransformersEngine

PROMPT = 75


def by_engine(engine: TransformersEngine, prompts: list[Any], lengths: list[int]) -> float:
    """Seconds for all replies."""

    async def one(k: int) -> None:
        request = TokenRequest(prompts[k], Sampling(lengths[k]), DrawKey(0, 0, k, 0))
        async for _ in engine.generate(request):
            pass

    async def everything() -> None:
        await asyncio.gather(*(one(k) for k in range(len(prompts))))

    engine.weights_changed(engine.version)  # nothing is left over from the run before
    started = time.perf_counter()
    asyncio.run(everything())
    return time.perf_counter() - started


def by_generate(model: Any, prompts: list[Any], lengths: list[int]) -> float:
    """Seconds for all replies; each row's tokens past its own length are not counted by the caller."""
    width = max(len(p) for p in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for k, prompt in enumerate(prompts):
        ids[k, width - len(prompt) :] = torch.from_numpy(prompt)
        mask[k, width - len(prompt) :] = 1
    ids, mask = ids.to(model.device), mask.to(model.device)
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(lengths),
            min_new_tokens=max(lengths),
            do_sample=True,
            top_k=None,
            pad_token_id=0,
        )
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> int:
    """Print one line a case; 1 if a ratio misses its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(locate_model(args.model), dtype=getattr(torch, args.dtype), device=args.device)
    engine = TransformersEngine(model, max_num_seqs=64)
    rng = np.random.default_rng(0)
    vocabulary = model.config.vocab_size

    def prompt() -> Any:
        return rng.integers(0, vocabulary, PROMPT).astype(np.int32)

    spread = [args.new_tokens // 2 * (1 + k) // 2 for k in range(8)]  # 1:8
    cases = [(f"batch {n}, equal", [prompt() for _ in range(n)], [args.new_tokens] * n, 1.0) for n in (1, 16, 64)]
    cases.append(
        ("8 prompts x 8, spread 1:8", [p for p in (prompt() for _ in range(8)) for _ in range(8)], spread * 8, 1.3)
    )
    missed = False
    print(f"{args.model} {args.dtype} {args.device}, {args.threads} threads, prompts of {PROMPT} tokens")
    for name, prompts, lengths, limit in cases:
        ours, theirs = [], []
        for turn in range(args.repeats + 1):
            a, b = by_engine(engine, prompts, lengths), by_generate(model, prompts, lengths)
            if turn:  # the first turn warms up
                ours.append(a)
                theirs.append(b)
        tokens = sum(lengths)
        ratio = min(theirs) / min(ours)
        missed |= not kept(f"tokens a second, {name}", ratio, at_least=limit)
        print(
            f"{name:26} engine {tokens / min(ours):7.0f} tok/s   generate {tokens / min(theirs):7.0f} tok/s   "
            f"ratio {ratio:.2f} (at least {limit})",
            flush=True,
        )
    engine.close()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
