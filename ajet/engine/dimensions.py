"""Dimensions of a dense decoder, and what a token costs in it: operations and bytes, by arithmetic alone.

Invariant: neither torch nor weights are needed. The sums count what no implementation can leave out (each matrix read
once a pass, two operations a weight and token), so that time told from them is a bound; norms, rotations and draws
are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ajet.engine.model_source import at_hand
from ajet.engine.weight_shapes import ModelSize, model_size
from ajet.record.bounded_json import read_json


class Dimensions(NamedTuple):
    """A model's dimensions, as config.json has them."""

    hidden: int
    layers: int
    heads: int
    kept_heads: int
    """Heads of keys, and of values."""
    width: int
    """Of a head."""
    inner: int
    """Width of the feed-forward part."""
    vocabulary: int
    tied: bool
    """Whether the embedding is the head, too."""
    normed: bool
    """Whether queries and keys are normed."""

    @property
    def asked(self) -> int:
        """Width of a layer's queries."""
        return self.heads * self.width

    @property
    def kept(self) -> int:
        """Width of a layer's keys, which is that of its values."""
        return self.kept_heads * self.width

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """(rows, columns) of a layer's: queries, keys, values, output, gate, up, down."""
        wide = (self.inner, self.hidden)
        keys = (self.kept, self.hidden)
        return [(self.asked, self.hidden), keys, keys, (self.hidden, self.asked), wide, wide, wide[::-1]]

    @property
    def multiplied(self) -> int:
        """Weights of all layers' matrices."""
        return self.layers * sum(rows * columns for rows, columns in self.matrices)

    @property
    def head(self) -> int:
        """Weights of the head."""
        return self.vocabulary * self.hidden

    def size(self) -> ModelSize:
        """The numbers that memory follows from, as `weight_shapes.model_size` reads them from the files."""
        norms = self.layers * (2 * self.hidden + 2 * self.width * self.normed) + self.hidden
        parameters = self.multiplied + norms + self.head * (1 if self.tied else 2)
        adapted = self.layers * sum(rows + columns for rows, columns in self.matrices)
        return ModelSize(parameters, adapted, self.layers, self.hidden, self.inner, self.kept, self.vocabulary)


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


def dimensions(folder: Path) -> Dimensions | None:
    """The dimensions of a model in Hugging Face layout; None for one that is no dense decoder, or whose config.json
    does not say."""
    try:
        whole = read_json(folder / "config.json")
        told = whole.get("text_config") or whole
        if any(told.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")):
            return None
        hidden, heads = int(told["hidden_size"]), int(told["num_attention_heads"])
        kind = str(told.get("model_type", ""))
        return Dimensions(
            hidden,
            int(told["num_hidden_layers"]),
            heads,
            int(told.get("num_key_value_heads") or heads),
            int(told.get("head_dim") or hidden // heads),
            int(told["intermediate_size"]),
            int(told["vocab_size"]),
            bool(told.get("tie_word_embeddings", whole.get("tie_word_embeddings", kind.startswith("gemma")))),
            kind.startswith("qwen3"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def read_size(model: str | None, base: Path) -> tuple[ModelSize | None, int | None]:
    """Return size and longest context in tokens of a model; None for what files on this machine do not say."""
    folder = at_hand(model, base=base, weights=False) if model is not None else None
    if folder is None:
        return None, None
    size = model_size(folder)
    if size is None and (shape := dimensions(folder)) is not None:
        size = shape.size()
    try:
        config = read_json(folder / "config.json")
        context = (config.get("text_config") or config).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        context = None
    return size, context if isinstance(context, int) else None


def parse_size(model: str) -> ModelSize | None:
    """Return the size in a model's name (`Qwen2.5-7B-Instruct`, `Mixtral-8x7B`): parameters alone, all else 0."""
    found = re.search(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", Path(model).name, re.I)
    if found is None:
        return None
    parameters = float(found[2]) * (1e9 if found[3] in "bB" else 1e6) * int(found[1] or 1)
    return ModelSize(round(parameters), 0, 0, 0, 0, 0, 0)


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
    operations = 2.0 * (of.multiplied * tokens + of.head * wanted) + 4.0 * of.layers * of.asked * seen * tokens
    moved = bytes_each * (of.multiplied + of.head + 2.0 * of.layers * of.kept * keys)
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
    products = 6.0 * (of.multiplied * tokens + of.head * wanted)
    attention = 12.0 * of.layers * of.asked * tokens * longest / 2
    moved = of.size().parameters * (bytes_each + 16 + 8)
    return (products + attention) / pace.flops + moved / pace.bandwidth


def scoring_seconds(of: Dimensions, pace: Pace, *, tokens: int, wanted: int, longest: int) -> float:
    """The least time of the logprobs of `wanted` of `tokens`."""
    attention = 4.0 * of.layers * of.asked * tokens * longest / 2
    return (2.0 * (of.multiplied * tokens + of.head * wanted) + attention) / pace.flops
