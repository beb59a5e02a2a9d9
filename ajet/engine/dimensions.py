"""Dimensions of a dense decoder, from its config.json.

Invariant: neither torch nor weights are needed.
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
