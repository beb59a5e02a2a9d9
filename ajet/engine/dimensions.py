"""Dimensions of a dense decoder from its config.json, and weight shapes from the headers of weight files.

Invariant: neither torch nor the weights are loaded.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ajet.engine.model_source import find_local_model
from ajet.record.files import read_json


class Dimensions(NamedTuple):
    """Layer count, widths and head counts of a dense decoder, as in config.json."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int  # heads of keys and values
    width: int  # width of a head
    inner: int  # width of the feed-forward layer
    vocabulary: int
    tied: bool  # True if embedding and head share weights
    normed: bool  # True if queries and keys are normed

    @property
    def query_width(self) -> int:
        """Width of a layer's query projection."""
        return self.heads * self.width

    @property
    def kv_width(self) -> int:
        """Width of a layer's key projection, equal to that of its values."""
        return self.kv_heads * self.width

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """(rows, columns) of a layer's matrices: queries, keys, values, output, gate, up, down."""
        inner_shape = (self.inner, self.hidden)
        key_shape = (self.kv_width, self.hidden)
        return [
            (self.query_width, self.hidden),
            key_shape,
            key_shape,
            (self.hidden, self.query_width),
            inner_shape,
            inner_shape,
            inner_shape[::-1],
        ]

    @property
    def matrix_weights(self) -> int:
        """Number of weights in all layers' matrices."""
        return self.layers * sum(rows * columns for rows, columns in self.matrices)

    @property
    def head(self) -> int:
        """Number of weights in the output head."""
        return self.vocabulary * self.hidden

    def size(self) -> ModelSize:
        """Return the numbers that determine memory, from the dimensions alone: no weight file is read."""
        # Two norms per layer, two more of queries and keys in some models, and one after the last layer.
        norms = self.layers * (2 * self.hidden + 2 * self.width * self.normed) + self.hidden
        parameters = self.matrix_weights + norms + self.head * (1 if self.tied else 2)
        adapted = self.layers * sum(rows + columns for rows, columns in self.matrices)
        return ModelSize(parameters, adapted, self.layers, self.hidden, self.inner, self.kv_width, self.vocabulary)


def read_dimensions(folder: Path) -> Dimensions | None:
    """Return a model's dimensions, or None if not a dense decoder or if config.json is incomplete."""
    try:
        top_config = read_json(folder / "config.json")
        config = top_config.get("text_config") or top_config
        if any(config.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank")):
            return None  # a mixture of experts, or compressed keys and values
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        kind = str(config.get("model_type", ""))
        return Dimensions(
            hidden,
            int(config["num_hidden_layers"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or hidden // heads),
            int(config["intermediate_size"]),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings", top_config.get("tie_word_embeddings", kind.startswith("gemma")))),
            kind.startswith("qwen3"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def read_size_and_context(model: str | None, base: Path) -> tuple[ModelSize | None, int | None]:
    """Return a model's size and longest context in tokens, each None if no local file has it."""
    folder = find_local_model(model, base=base, weights=False) if model is not None else None
    if folder is None:
        return None, None
    size = read_model_size(folder)
    if size is None and (shape := read_dimensions(folder)) is not None:
        size = shape.size()
    try:
        config = read_json(folder / "config.json")
        context = (config.get("text_config") or config).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        context = None
    return size, context if isinstance(context, int) else None


def parse_size(model: str) -> ModelSize | None:
    """Read the parameter count from a model's name (`Qwen2.5-7B-Instruct`, `Mixtral-8x7B`), or return None.

    All other numbers of the result are 0.
    """
    match = re.search(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([BM])(?![A-Za-z0-9])", Path(model).name, re.I)
    if match is None:
        return None
    parameters = float(match[2]) * (1e9 if match[3] in "bB" else 1e6) * int(match[1] or 1)
    return ModelSize(round(parameters), 0, 0, 0, 0, 0, 0)


_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
_LONGEST_HEAD = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers of a model from which memory is estimated."""

    parameters: int
    adapted: int
    """Sum of rows and columns of all matrices except embedding and head; times the rank, the weights of adapters."""
    layers: int
    hidden: int
    inner: int
    """Width of a layer's feed-forward part; for a mixture of experts, of the experts used per token."""
    kv_width: int
    """Width of a layer's keys, equal to the width of its values."""
    vocabulary: int


def read_model_size(folder: Path) -> ModelSize | None:
    """Return the size of a model in Hugging Face layout, or None if its files lack the numbers."""
    try:
        config = read_json(folder / "config.json")
        config = config.get("text_config") or config
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        experts = int(config.get("num_experts_per_tok") or 0)
        inner = int(config["moe_intermediate_size"]) * experts if experts and "moe_intermediate_size" in config else 0
        kv_width = int(config.get("num_key_value_heads") or heads) * int(config.get("head_dim") or hidden // heads)
        layers, vocabulary = int(config["num_hidden_layers"]), int(config["vocab_size"])
        inner = inner or int(config.get("intermediate_size") or 4 * hidden)
        shapes = [
            (name, [int(side) for side in tensor_info["shape"]])
            for path in sorted(folder.glob("*.safetensors"))
            for name, tensor_info in _read_header(path).items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    if not shapes:
        return None
    adapted = sum(
        sum(shape) for name, shape in shapes if len(shape) == 2 and not name.endswith((*_EMBEDDINGS, *_HEADS))
    )
    return ModelSize(sum(math.prod(shape) for _, shape in shapes), adapted, layers, hidden, inner, kv_width, vocabulary)


def read_embedding_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes [rows, width] of `embedding` and of a separate `head`. {} without safetensors files."""
    shapes: dict[str, list[int]] = {}
    for path in _list_weight_files(folder):
        for name, tensor_info in _read_header(path).items():
            for kind, suffixes in (("embedding", _EMBEDDINGS), ("head", _HEADS)):
                if (
                    name.endswith(suffixes)
                    and isinstance(tensor_info, dict)
                    and isinstance(tensor_info.get("shape"), list)
                ):
                    shapes[kind] = tensor_info["shape"]
    return shapes


def list_linear_layers(folder: Path) -> tuple[str, ...]:
    """Return the names (`q_proj`) of a model's matrices except embedding and head. () without safetensors files."""
    return tuple(
        sorted(
            {
                name.split(".")[-2]
                for path in folder.glob("*.safetensors")
                for name, tensor_info in _read_header(path).items()
                if name.endswith(".weight")
                and len(tensor_info["shape"]) == 2
                and not name.endswith((*_EMBEDDINGS, *_HEADS))
            }
        )
    )


def _list_weight_files(folder: Path) -> list[Path]:
    """Return the model's weight files. If there is an index, only those with embeddings or heads."""
    try:
        weight_map = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError):
        return sorted(folder.glob("*.safetensors"))
    return sorted({folder / file for name, file in weight_map.items() if name.endswith((*_EMBEDDINGS, *_HEADS))})


def _read_header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file (8 bytes of length, then JSON), or {} if it cannot be read."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size)) if size <= _LONGEST_HEAD else {}
    except (OSError, ValueError, struct.error):
        return {}
    return header if isinstance(header, dict) else {}
