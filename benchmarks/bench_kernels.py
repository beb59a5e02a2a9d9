"""What the transformers engine and the local trainer compute in a way of their own, against torch's and transformers'.

Each pair gives the same bits, which is held before it is timed; that of a decoding step's attention does not, and is
held to be no further from float64. The two take turns, so that both meet the same machine, and a ratio is that of their
medians, in processor time of one thread. At SmolLM2's shapes: a decoding step's products of 64 rows out of weights that
no cache holds; a norm over the addition task's step, forward and backward; the attention of 27 prompts of 75 tokens and
the writing of their keys; that of 64 rows of 85 to 105 keys; the probabilities of 64 rows; the optimizer over 2^23
weights; the sum of the gradients of 2^25.
Limit: never slower.

    python benchmarks/bench_kernels.py [--rounds 20]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from ceiling import APART
from ratios import kept
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ajet.backbone.local.flat_weights import FlatWeights, add_sliced
from ajet.backbone.local.optimizer import FlatAdamW, gradient_norm
from ajet.engine.rms_norm import replace_norms
from ajet.engine.transformers import linear_layers
from ajet.engine.transformers.attention import attend_fused_rows
from ajet.engine.transformers.sampling import Sampler

NEARER = "attention of 64 rows"
"""The pair whose bits differ."""
Work = Callable[[], list[Tensor]]
HIDDEN, INNER, HEADS, KEPT_HEADS, WIDTH, VOCABULARY = 576, 1536, 9, 3, 64, 49152
DRAW = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    """bfloat16."""
    return torch.randn(*shape, generator=DRAW).to(torch.bfloat16)


def products() -> tuple[Work, Work]:
    """As torch lays them out each time, and laid out once."""
    weights = [normal(INNER, HIDDEN) for _ in range(APART // (INNER * HIDDEN * 2))]
    packed = [linear_layers._pack_weight(each) for each in weights]
    given = normal(64, HIDDEN)
    return (
        lambda: [F.linear(given, each) for each in weights],
        lambda: [linear_layers._multiply_packed(given, each, None) for each in packed],
    )


def norms() -> tuple[Work, Work]:
    """transformers' and ours, of 1,560 tokens."""
    given, grad = normal(1, 1560, HIDDEN).requires_grad_(), normal(1, 1560, HIDDEN)

    def of(module: torch.nn.Module) -> Work:
        def work() -> list[Tensor]:
            out = module(given)
            return [out.detach(), *torch.autograd.grad(out, (given, module.weight), grad)]

        return work

    own, ours = (LlamaRMSNorm(HIDDEN, 1e-5).to(torch.bfloat16) for _ in range(2))
    replace_norms(ours)
    return of(own), of(ours)


def prompts() -> tuple[Work, Work]:
    """Keys repeated for each query head and written by index; shared, and written as one block."""
    rows, length = 27, 75
    q, k, v = (
        normal(heads, rows * length, WIDTH).unflatten(1, (rows, length)).transpose(0, 1)
        for heads in (HEADS, KEPT_HEADS, KEPT_HEADS)
    )
    keys = torch.zeros(64, KEPT_HEADS, 128, WIDTH, dtype=torch.bfloat16)
    places = torch.arange(rows)

    def repeated() -> list[Tensor]:
        keys[places, :, :length] = k
        wide = (t.repeat_interleave(HEADS // KEPT_HEADS, 1) for t in (k, v))
        return [F.scaled_dot_product_attention(q, *wide, is_causal=True), keys]

    def shared() -> list[Tensor]:
        keys[:rows, :, :length] = k
        return [F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), keys]

    return repeated, shared


def rows() -> tuple[Work, Work]:
    """A decoding step: two batched products and a softmax over all of the rows' room; fused, up to the longest."""
    count, room, seen = 64, 128, 112
    layers = [tuple(normal(count, KEPT_HEADS, room, WIDTH) for _ in range(2)) for _ in range(15)]
    q, last = normal(count, HEADS, 1, WIDTH), torch.randint(85, 105, (count, 1), generator=DRAW)
    mask = torch.zeros(count, room, dtype=q.dtype).masked_fill_(torch.arange(room) >= last, -math.inf)
    wide = mask[:, None, None].repeat(1, KEPT_HEADS, HEADS // KEPT_HEADS, 1).flatten(0, 1)
    grouped = q.view(count * KEPT_HEADS, -1, WIDTH)

    def written_out() -> list[Tensor]:
        found = []
        for keys, values in layers:
            scores = torch.baddbmm(wide, grouped, keys.flatten(0, 1).transpose(1, 2), alpha=WIDTH**-0.5)
            found.append(torch.bmm(torch.softmax(scores, -1), values.flatten(0, 1)).view_as(q))
        return found

    def fused() -> list[Tensor]:
        return [
            attend_fused_rows(q[:, :, 0], keys[:, :, :seen], values[:, :, :seen], mask[:, :seen], WIDTH**-0.5).view_as(
                q
            )
            for keys, values in layers
        ]

    keys, values = (t.double().repeat_interleave(HEADS // KEPT_HEADS, 1) for t in layers[0])
    exact = F.scaled_dot_product_attention(q.double(), keys, values, attn_mask=mask[:, None, None].double())
    theirs, ours = ((work()[0] - exact).abs().mean() for work in (written_out, fused))
    assert ours <= theirs, f"{ours:.1e} from float64, written out {theirs:.1e}"
    return written_out, fused


def probabilities() -> tuple[Work, Work]:
    """All rows at once, and a few at a time."""
    logits, room, sampler = normal(64, VOCABULARY), torch.empty(64, VOCABULARY), Sampler()
    return (
        lambda: [torch.softmax(logits, -1, dtype=torch.float32, out=room)],
        lambda: [sampler._compute_softmax("unit", logits)],
    )


def steps() -> tuple[Work, Work]:
    """The optimizer, its slices of 2^18, each operator's result new; and in slices and room that a cache holds."""
    gradients = normal(1 << 23)
    betas, eps, decay, lr = (0.9, 0.999), 1e-8, 0.01, 1e-3

    def made() -> tuple[FlatWeights, FlatAdamW]:
        weights = FlatWeights([("w", torch.nn.Parameter(torch.ones(1 << 12, 1 << 11, dtype=torch.bfloat16)))])
        return weights, FlatAdamW(weights, betas=betas, eps=eps, weight_decay=decay, clip=1.0)

    (plain, state), (weights, adam) = made(), made()
    state.counts[""] = 0

    def own() -> list[Tensor]:
        state.counts[""] += 1
        steps, scale = state.counts[""], 1.0 / (gradient_norm(gradients) + 1e-6)
        assert plain.low is not None
        parts = (each.split(1 << 18) for each in (gradients, state.first, state.second, plain.values, plain.low))
        for gradient, first, second, values, low in zip(*parts, strict=True):
            wide = gradient.float().mul_(scale)
            first.lerp_(wide, 1 - betas[0])
            second.mul_(betas[1]).addcmul_(wide, wide, value=1 - betas[1])
            spread = second.sqrt().div_(math.sqrt(1 - betas[1] ** steps)).add_(eps)
            bits = values.view(torch.int16).to(torch.int32).bitwise_left_shift_(16).add_(low)
            master = bits.view(torch.float32).mul_(1 - lr * decay)
            master.addcdiv_(first, spread, value=-lr / (1 - betas[0] ** steps))
            high = bits.add(0x8000).bitwise_right_shift_(16)
            values.view(torch.int16).copy_(high)
            low.copy_(bits.sub_(high.bitwise_left_shift_(16)))
        return [plain.values, plain.low, state.first, state.second]

    def ours() -> list[Tensor]:
        adam.step(gradients, lr)
        assert weights.low is not None
        return [weights.values, weights.low, adam.first, adam.second]

    return own, ours


def sums() -> tuple[Work, Work]:
    """The gradients of 2^25 weights: added to zeros, and laid over them."""
    parts = [normal(INNER, HIDDEN).view(-1) for _ in range((1 << 25) // (INNER * HIDDEN))]

    def of(*, first: bool) -> Work:
        def work() -> list[Tensor]:
            whole, at = torch.zeros(sum(part.numel() for part in parts), dtype=torch.bfloat16), 0
            for part in parts:
                add_sliced(whole[at : at + part.numel()], part, first=first)
                at += part.numel()
            return [whole]

        return work

    return of(first=False), of(first=True)


def main() -> int:
    """Print a line a pair; 1 where one is slower or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", help="pairs whose name holds this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    within = True
    pairs = {"norm, forward and backward": norms, "prompts' attention": prompts, "probabilities": probabilities}
    pairs |= {"optimizer": steps, "gradients": sums, NEARER: rows}
    if linear_layers.can_pack():
        pairs = {"products of 64 rows": products, **pairs}
    pairs = {name: pair for name, pair in pairs.items() if not args.only or args.only in name}
    if not pairs:
        parser.error(f"--only: no pair's name holds {args.only!r}")
    for name, pair in pairs.items():
        sides = pair()
        with torch.inference_mode(name != "norm, forward and backward"):
            same = all(map(torch.equal, sides[0](), sides[1]()))
            spent: list[list[float]] = [[], []]
            for _ in range(args.rounds):
                for work, seconds in zip(sides, spent, strict=True):
                    began = time.thread_time()
                    work()
                    seconds.append(time.thread_time() - began)
        theirs, ours = (statistics.median(each) for each in spent)
        bits = "the same bits" if same else "nearer to float64" if name == NEARER else "OTHER BITS"
        within &= (same or name == NEARER) & kept(f"{name}, against the libraries' own", theirs / ours, at_least=1.0)
        print(
            f"{name:28} {theirs * 1e3:8.2f} ms, ours {ours * 1e3:8.2f} ms: {theirs / ours:.2f} times as fast, "
            f"{bits} (load {os.getloadavg()[0]:.0f})",
            flush=True,
        )
    return int(not within)


if __name__ == "__main__":
    sys.exit(main())
