"""The least time that a phase of training can take in a dense decoder, from its operations and bytes.

Invariant: neither torch nor weights are needed. The sums count what no implementation can leave out (each matrix read
once a pass, two operations a weight and token), so the time is a bound; norms, rotations and draws are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from ajet.engine.dimensions import Dimensions

PUBLISHED = {
    "SmolLM2-135M": Dimensions(576, 30, 9, 3, 64, 1536, 49152, True, False),
    "Qwen3-0.6B": Dimensions(1024, 28, 16, 8, 128, 3072, 151936, True, True),
    "Qwen3-1.7B": Dimensions(2048, 28, 16, 8, 128, 6144, 151936, True, True),
    "Qwen3-4B": Dimensions(2560, 36, 32, 8, 128, 9728, 151936, True, True),
    "Qwen3-8B": Dimensions(4096, 36, 32, 8, 128, 12288, 151936, False, True),
    "Qwen3-14B": Dimensions(5120, 40, 40, 8, 128, 17408, 151936, False, True),
    "Qwen3-32B": Dimensions(5120, 64, 64, 8, 128, 25600, 151936, False, True),
}
"""Models to choose a size by."""


class Pace(NamedTuple):
    """The pace of a device: operations and bytes a second."""

    flops: float
    """Operations a second of matrix products."""
    bandwidth: float
    """Bytes a second to and from memory."""

    def seconds(self, operations: float, moved: float) -> float:
        """The least that work can take in which products and memory overlap wholly."""
        return max(operations / self.flops, moved / self.bandwidth)


def pass_seconds(of: Dimensions, pace: Pace, *, tokens: int, wanted: int, keys: float, bytes_each: int) -> float:
    """The least time of a forward pass over `tokens`, with the logits of `wanted` of them. `keys`: keys that are read
    in all, each row's once; all tokens of a pass that has one a row see `keys / tokens` each."""
    seen = keys / tokens
    operations = (
        2.0 * (of.matrix_weights * tokens + of.head * wanted) + 4.0 * of.layers * of.query_width * seen * tokens
    )
    moved = bytes_each * (of.matrix_weights + of.head + 2.0 * of.layers * of.kv_width * keys)
    return pace.seconds(operations, moved)


def sampling_seconds(of: Dimensions, pace: Pace, *, rows: int, prompt: int, new: int, bytes_each: int) -> float:
    """The least time of `rows` prompts that share nothing, and of `new` tokens after each."""
    first = pass_seconds(of, pace, tokens=rows * prompt, wanted=rows, keys=rows * prompt / 2, bytes_each=bytes_each)
    # One pass per further token, all rows at once; the first token comes of the prompt's own pass.
    steps = (
        pass_seconds(of, pace, tokens=rows, wanted=rows, keys=rows * (prompt + at), bytes_each=bytes_each)
        for at in range(1, new)
    )
    return first + sum(steps)


def update_seconds(of: Dimensions, pace: Pace, *, tokens: int, wanted: int, longest: int, bytes_each: int) -> float:
    """The least time of forward and backward over samples of up to `longest` tokens and of the optimizer's step:
    gradients read, two float32 moments and the weights with their masters read and written."""
    products = 6.0 * (of.matrix_weights * tokens + of.head * wanted)
    attention = 12.0 * of.layers * of.query_width * tokens * longest / 2
    moved = of.size().parameters * (bytes_each + 16 + 8)
    return (products + attention) / pace.flops + moved / pace.bandwidth


def scoring_seconds(of: Dimensions, pace: Pace, *, tokens: int, wanted: int, longest: int) -> float:
    """The least time of the logprobs of `wanted` of `tokens`."""
    attention = 4.0 * of.layers * of.query_width * tokens * longest / 2
    return (2.0 * (of.matrix_weights * tokens + of.head * wanted) + attention) / pace.flops
