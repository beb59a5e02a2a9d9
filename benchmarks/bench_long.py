"""Long contexts: memory and time of an update, and of a call's capture, against length; 128K tokens at the end.

`train`: one update of the local backbone (a tiny model, so that activations and not weights are weighed), with
`gradient_checkpointing`, each in a process of its own. Printed: the tokens of the longest sample and of all samples,
those computed, the peak of resident memory above what the process holds before, and the seconds.

    line      one sample, the second half of it trained
    tree      four branches of a thousand tokens behind one shared prompt: what an agent with a long context does
    window    one sample, layers that see the nearest 512 tokens

`capture`: an agent plays through gateway and session with a scripted model: a thousand tokens a call, up to 128K, then
it puts a summary in the place of its history and goes on. Printed: the CPU milliseconds of a call (the scripted model's
among them) and the bytes that a session keeps for each of its distinct tokens, against the length of its prompt.

Limits: memory grows with at most the power 1.1 of the length; a call behind 128K tokens at most 5 ms.

    python benchmarks/bench_long.py [--parts train,capture] [--kinds line,tree,window] [--lengths 8192,32768,131072]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from choices import some_of
from ratios import kept

HERE = Path(__file__).parent
KINDS = ("line", "tree", "window")
LENGTHS = (8192, 32768, 131072)
BRANCHES, REPLY, WINDOW = 4, 1024, 512
VOCABULARY = 512
POWER_LIMIT, CALL_LIMIT_MS = 1.1, 5.0
TIMEOUT = 3600.0


def tiny(kind: str, longest: int) -> Any:
    """A Qwen3 of two layers with one head, on positions up to `longest`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    window: dict[str, Any] = {}
    if kind == "window":
        window = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0}
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=longest, **window,
        )
    )  # fmt: skip


def samples(kind: str, length: int) -> list[Any]:
    """Of one group, the longest of `length` tokens."""
    from ajet.schema.batch import Sample
    from ajet.schema.episode import SampledSpan, Timeline

    draw = np.random.default_rng(length)
    start = length - REPLY if kind == "tree" else length // 2
    prompt = draw.integers(0, VOCABULARY, start)
    made = []
    for number in range(BRANCHES if kind == "tree" else 1):
        ids = np.concatenate([prompt, draw.integers(0, VOCABULARY, length - start)]).astype(np.int32)
        mask = np.arange(length) >= start
        zeros, versions = np.zeros(length, np.float32), np.where(mask, 0, -1).astype(np.int32)
        timeline = Timeline(0, "a", "a", ids, mask, zeros, zeros, versions, (SampledSpan(0, start, length),))
        advantages = np.where(mask, 1.0 - 2 * (number % 2), 0).astype(np.float32)
        made.append(Sample(timeline, f"0/{number}", 0, advantages, 1 / (BRANCHES * (length - start))))
    return made


def update(kind: str, length: int) -> dict[str, float]:
    """One update, in this process."""
    import psutil
    from bench_memory import Peak

    from ajet.backbone.local.machine import bound_kernel_caches
    from ajet.backbone.local.trainer import Trainer
    from ajet.config import Experiment
    from ajet.schema.batch import TrainingBatch

    bound_kernel_caches()
    node = {
        "model": {"path": "embedded:tiny-tools"},
        "trainer_common": {"gradient_checkpointing": True, "use_kl_loss": False, "micro_batch_tokens": 2 * length},
    }
    trainer = Trainer(tiny(kind, length), Experiment.from_dict({"ajet": node}, base=HERE).ajet)
    assert trainer.policy.forward.packed
    batch = TrainingBatch(1, samples(kind, length))
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    with Peak() as peak:
        metrics = trainer.update(batch)
    assert np.isfinite(metrics["grad_norm"]) and metrics["steps_skipped"] == 0
    return {
        "tokens": sum(sample.timeline.ids.size for sample in batch.samples),
        "computed": metrics["computed_tokens"],
        "bytes": peak.bytes - before,
        "seconds": time.perf_counter() - began,
    }


def train(kinds: list[str], lengths: list[int]) -> bool:
    """`train`. Whether memory is linear."""
    print(f"{'':8} {'longest':>8} {'samples':>8} {'computed':>9} {'peak':>9} {'a token':>9} {'seconds':>8}")
    good = True
    for kind in kinds:
        points = []
        for length in lengths:
            command = [sys.executable, __file__, "--one", kind, "--lengths", str(length)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            points.append((length, found["bytes"]))
            print(f"{kind:8} {length:8,} {found['tokens']:8,} {found['computed']:9,.0f} {found['bytes'] / 1e6:6.0f} MB "
                  f"{found['bytes'] / length:7.0f} B {found['seconds']:8.1f}", flush=True)  # fmt: skip
        if len(points) > 1:
            power = float(np.polyfit(*np.log(np.array(points, float)).T, 1)[0])
            print(f"{kind:8} memory grows as length ^ {power:.2f} (limit {POWER_LIMIT})")
            good &= kept(f"{kind}: power of the length", power, at_most=POWER_LIMIT)
    return good


def capture(longest: int) -> bool:
    """`capture`. Whether a call at the end of the context keeps its limit."""
    import tracemalloc

    from bench_capture import a_gateway
    from direct_call import call_model

    from ajet.engine.contract import Sampling

    gateway = a_gateway(300)
    seen = "The file has these lines and more of them follow. " * 14

    async def play(calls: int, name: str) -> list[tuple[int, float, int]]:
        """Of each call: the tokens of its prompt, its CPU milliseconds, and the memory that is held after it."""
        session = gateway.open(name, key=(0, 0, 0), sampling=Sampling(1 << 20), trainable=None)
        asked: list[dict[str, Any]] = [{"role": "user", "content": "Find the fault in this program."}]
        messages, found = list(asked), []
        for _ in range(calls):
            began = time.thread_time()
            message = await call_model(session, messages)
            spent = time.thread_time() - began
            call = session.recorder.capture.calls[-1]
            length = call.prefix + len(call.suffix_ids)
            held = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
            found.append((length, spent * 1e3, held))
            messages = [*messages, message, {"role": "user", "content": seen}]
            if length + len(call.response_ids) + 1024 > longest:
                messages = [*asked, {"role": "user", "content": "What was found so far: nothing is wrong yet."}]
        return found

    gateway.call(play(8, "warm")).result()
    rounds = [gateway.call(play(240, f"round {number}")).result() for number in range(5)]
    tracemalloc.start()
    weighed = gateway.call(play(240, "weighed")).result()
    tracemalloc.stop()
    gateway.close()
    lengths = [length for length, *_ in rounds[0]]
    spent = [statistics.median(each[call][1] for each in rounds) for call in range(len(lengths))]
    full = lengths.index(max(lengths))
    print(f"capture: {len(lengths)} calls; context {max(lengths):,} tokens at call {full + 1}, then compacted")
    print(f"  {'call':>6} {'prompt':>9} {'CPU ms':>7} {'kept since the start, B a distinct token':>42}")
    base = weighed[0][2]
    distinct = np.cumsum([max(1, lengths[0])] + [b - a if b > a else b for a, b in zip(lengths, lengths[1:])])  # noqa: B905
    for call in [0, full // 8, full // 4, full // 2, full, full + 1, full + 2, len(lengths) - 1]:
        kept_bytes = (weighed[call][2] - base) / distinct[call] if call else 0.0
        print(f"  {call + 1:6} {lengths[call]:9,} {spent[call]:7.2f} {kept_bytes:42.1f}")
    return kept("CPU ms of a call behind the longest prompt", spent[full], at_most=CALL_LIMIT_MS)


def main() -> int:
    """Print the tables; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="train,capture", type=some_of("train", "capture"))
    parser.add_argument("--kinds", default=",".join(KINDS), type=some_of(*KINDS))
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lengths = [int(length) for length in arguments.lengths.split(",")]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.one:
        print(json.dumps(update(arguments.one, lengths[0])))
        return 0
    good = True
    if "train" in arguments.parts:
        good &= train(arguments.kinds, lengths)
    if "capture" in arguments.parts:
        good &= capture(max(lengths))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
