"""What a device can do: matrix products, memory bandwidth, attention, measured here and now.

Invariant: a pace is the best of several rounds, each timed to its end on the device, so that a process beside this one
makes it smaller and never larger. One thread on a CPU is timed by its own processor time, which waiting for the
processor is no part of. Nothing of it is kept in memory afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from ajet.engine.dimensions import Dimensions

SIZES = (512, 1024, 2048)
"""Of square products, the best of which counts."""
TRIAD_BYTES = 64 << 20
"""Of each of the three arrays: more than the caches of one process's cores."""
PASS, WANTED = 1024, 128
"""Tokens of a pass over prompts or samples, and the rows whose logits exist at a time there."""
APART = 128 << 20
"""Bytes of matrices that are gone through before one comes again, so that no cache holds it: a decoding step reads
each weight once."""


def best_seconds(work: Callable[[], object], device: torch.device, *, budget: float) -> float:
    """The seconds of one call, the best in `budget` seconds (three calls at least), the first of which warms up."""
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    work()
    _finish(device)
    best, began, rounds = float("inf"), time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - began < budget:
        start = clock()
        work()
        _finish(device)
        best = min(best, clock() - start)
        rounds += 1
    return best


def matmul_pace(dtype: torch.dtype, device: torch.device, *, budget: float = 2.0) -> tuple[float, int]:
    """Operations a second of the library's best square product, and its size."""
    found = []
    with torch.inference_mode():
        for size in SIZES:
            left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
            out = torch.empty(size, size, dtype=dtype, device=device)
            seconds = best_seconds(lambda: torch.mm(left, right, out=out), device, budget=budget / len(SIZES))  # noqa: B023
            found.append((2.0 * size**3 / seconds, size))
            if seconds > budget:
                break
    return max(found)


def triad_pace(device: torch.device, *, budget: float = 1.0) -> float:
    """Bytes a second of STREAM's triad, a = b + 3 c, counted as STREAM does: two reads and a write."""
    count = TRIAD_BYTES // 4
    a, b, c = (torch.ones(count, device=device) for _ in range(3))
    with torch.inference_mode():
        return 3 * TRIAD_BYTES / best_seconds(lambda: torch.add(b, c, alpha=3.0, out=a), device, budget=budget)


def attention_pace(of: Dimensions, dtype: torch.dtype, device: torch.device, *, length: int, budget: float) -> float:
    """Operations a second of torch's fused causal attention over `length` tokens, with the model's heads."""
    q, k, v = (torch.randn(1, of.heads, length, of.width, device=device).to(dtype) for _ in range(3))
    with torch.inference_mode():
        seconds = best_seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), device, budget=budget)
    return 2.0 * of.query_width * length * length / seconds


def layer_seconds(of: Dimensions, dtype: torch.dtype, device: torch.device, *, tokens: int, budget: float) -> float:
    """Seconds of all matrix products of a forward pass over `tokens`, without the head's."""
    shapes = of.matrices
    each = {
        shape: linear_seconds(*shape, dtype, device, tokens=tokens, budget=budget / len(set(shapes)))
        for shape in dict.fromkeys(shapes)
    }
    return of.layers * sum(each[shape] for shape in shapes)


def sampling_alone(
    of: Dimensions, dtype: torch.dtype, device: torch.device, *, rows: int, prompt: int, new: int, budget: float
) -> float:
    """Seconds of torch's own products alone, of `rows` prompts that share nothing and `new` tokens after each."""
    once = layer_seconds(of, dtype, device, tokens=PASS, budget=budget / 2) * rows * prompt / PASS
    each = layer_seconds(of, dtype, device, tokens=rows, budget=budget / 4)
    head = linear_seconds(of.vocabulary, of.hidden, dtype, device, tokens=rows, budget=budget / 4)
    return once + new * (each + head)


def update_alone(
    of: Dimensions, dtype: torch.dtype, device: torch.device, *, tokens: int, wanted: int, budget: float
) -> float:
    """Seconds of torch's own products alone in forward and backward, which has twice as many, over `tokens`, with the
    logits of `wanted` of them."""
    each = layer_seconds(of, dtype, device, tokens=PASS, budget=budget / 2) * tokens / PASS
    head = linear_seconds(of.vocabulary, of.hidden, dtype, device, tokens=WANTED, budget=budget / 2) * wanted / WANTED
    return 3 * (each + head)


def linear_seconds(
    rows: int, columns: int, dtype: torch.dtype, device: torch.device, *, tokens: int, budget: float
) -> float:
    """Seconds of one product of [tokens, columns] with a matrix that no cache holds."""
    count = max(1, min(64, APART // (rows * columns * dtype.itemsize)))
    matrices = [torch.randn(rows, columns, device=device, dtype=dtype) for _ in range(count)]
    given = torch.randn(tokens, columns, device=device).to(dtype)
    with torch.inference_mode():
        return best_seconds(lambda: [F.linear(given, each) for each in matrices], device, budget=budget) / count


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
