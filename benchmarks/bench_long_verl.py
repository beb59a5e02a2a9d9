"""Long contexts through verl's FSDP engine: memory and time of an update against length, with its rows split or not.

A world of gloo processes on the CPU, a thread each, has verl's engine with `ajet_trees` and Ulysses sequence
parallelism over all of them, a Qwen3 of two layers and two heads of 8 numbers, and `gradient_checkpointing`; Ray is not
started. Each length is a world of its own. Printed: the tokens of the longest row and of all rows, those computed, the
peak of resident memory of the rank that needs most, above what it holds before, and the seconds.

    line      one row, the second half of it trained
    tree      four branches of a thousand tokens behind one shared prompt
    window    one row, layers that see the nearest 512 tokens

Limit: memory grows with at most the power 1.1 of the length.

    python benchmarks/bench_long_verl.py [--kinds line,tree,window] [--ranks 2] [--lengths 8192,32768,131072]
                                         [--vocabulary 32000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from bench_trees import ENVIRONMENT, Row, batch, engine_of, loss
from choices import some_of
from ratios import kept

KINDS = ("line", "tree", "window")
LENGTHS = (8192, 32768, 131072)
BRANCHES, REPLY, WINDOW = 4, 1024, 512
VOCABULARY = 379
"""That of the tokenizer."""
POWER_LIMIT = 1.1
TIMEOUT = 3600.0


def rows_of(kind: str, length: int) -> list[Row]:
    """Rows of `length` tokens, each with the number of its tokens that are not trained."""
    draw = np.random.default_rng(length)
    start = length - REPLY if kind == "tree" else length // 2
    prompt = draw.integers(3, VOCABULARY, start).tolist()
    count = BRANCHES if kind == "tree" else 1
    return [(prompt + draw.integers(3, VOCABULARY, length - start).tolist(), start) for _ in range(count)]


def write_model(folder: Path, kind: str, longest: int, vocabulary: int) -> None:
    """A tiny model on positions up to `longest`, with a tokenizer beside it, which verl asks for."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from ajet.engine.embedded import shipped_folder

    torch.manual_seed(0)
    window: dict[str, Any] = {}
    if kind == "window":
        window = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0}
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=longest, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=2, bos_token_id=None, **window,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(shipped_folder("tiny-tools")).save_pretrained(folder)


def update(folder: Path, kind: str, length: int, rank: int, ranks: int) -> dict[str, float]:
    """One update, in the process of this rank."""
    os.environ.update(ENVIRONMENT, RANK=str(rank), WORLD_SIZE=str(ranks))
    import psutil
    import torch
    import verl  # noqa: F401 - before torch.distributed is asked for anything
    from bench_memory import Peak

    from ajet.backbone.local.machine import bound_kernel_caches

    bound_kernel_caches()
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    engine = engine_of(folder, length, ranks, gradient_checkpointing=True)
    rows = rows_of(kind, length)
    data = batch(rows, 2 * length // ranks)
    torch.distributed.barrier()
    before, began, busy = psutil.Process().memory_info().rss, time.perf_counter(), time.process_time()
    with Peak() as peak, engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(data, loss)
        norm = engine.optimizer_step()
    found = {
        "tokens": sum(len(ids) for ids, _ in rows), "computed": engine.computed, "bytes": peak.bytes - before,
        "seconds": time.perf_counter() - began, "cpu": time.process_time() - busy, "norm": float(norm),
    }  # fmt: skip
    torch.distributed.destroy_process_group()
    return found


def world(kind: str, length: int, ranks: int, vocabulary: int = VOCABULARY) -> list[dict[str, float]]:
    """What each rank of a world found."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), kind, length, vocabulary)
        command = [sys.executable, __file__, "--kinds", kind, "--lengths", str(length), "--ranks", str(ranks)]
        started: list[Any] = [
            subprocess.Popen([*command, "--folder", folder, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        try:
            printed = [process.communicate(timeout=TIMEOUT)[0] for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        if any(process.returncode for process in started):
            raise SystemExit(f"a rank of {ranks} over {length} tokens failed")
    return [json.loads(text.splitlines()[-1]) for text in printed]


def main() -> int:
    """Print the table; 1 where memory grows faster than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), type=some_of(*KINDS))
    parser.add_argument("--ranks", default="2", help="worlds: 1,2 measures each without splitting, too")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="of the model")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lengths = [int(length) for length in arguments.lengths.split(",")]
    worlds = [int(ranks) for ranks in arguments.ranks.split(",")]
    if arguments.rank is not None:
        print(json.dumps(update(arguments.folder, arguments.kinds[0], lengths[0], arguments.rank, worlds[0])))
        return 0
    print(f"{'':6} {'ranks':>5} {'longest':>8} {'tokens':>8} {'computed':>9} {'peak':>9} {'a token':>9} {'seconds':>8} "
          f"{'CPU s':>8}")  # fmt: skip
    good = True
    for kind in arguments.kinds:
        for ranks in worlds:
            points = []
            for length in lengths:
                found = world(kind, length, ranks, arguments.vocabulary)
                most, first = max(each["bytes"] for each in found), found[0]
                points.append((length, most))
                print(f"{kind:6} {ranks:5} {length:8,} {first['tokens']:8,} {first['computed']:9,} "
                      f"{most / 1e6:6.0f} MB {most / length:7.0f} B {first['seconds']:8.1f} "
                      f"{sum(each['cpu'] for each in found):8.1f}", flush=True)  # fmt: skip
            if len(points) > 1:
                power = float(np.polyfit(*np.log(np.array(points, float)).T, 1)[0])
                print(f"{kind:6} {ranks:5} memory grows as length ^ {power:.2f} (limit {POWER_LIMIT})")
                good &= kept(f"{kind}, {ranks} ranks: power of the length", power, at_most=POWER_LIMIT)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
