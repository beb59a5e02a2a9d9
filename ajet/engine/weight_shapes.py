"""Shapes of weights, read from the head of the files that hold them: neither torch nor the weights are loaded."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.record.bounded_json import read_json

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
_LONGEST_HEAD = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The numbers of a model that its memory follows from."""

    parameters: int
    adapted: int
    """Rows and columns of all matrices but embedding and head, added up: times the rank, the weights of adapters."""
    layers: int
    hidden: int
    inner: int
    """Width of a layer's feed-forward part; of a mixture of experts, of those that a token goes through."""
    kept: int
    """Width of a layer's keys, which is that of its values."""
    vocabulary: int


def model_size(folder: Path) -> ModelSize | None:
    """The size of a model in Hugging Face layout; None where its files do not say it."""
    try:
        told = read_json(folder / "config.json")
        told = told.get("text_config") or told
        hidden, heads = int(told["hidden_size"]), int(told["num_attention_heads"])
        experts = int(told.get("num_experts_per_tok") or 0)
        inner = int(told["moe_intermediate_size"]) * experts if experts and "moe_intermediate_size" in told else 0
        kept = int(told.get("num_key_value_heads") or heads) * int(told.get("head_dim") or hidden // heads)
        layers, vocabulary = int(told["num_hidden_layers"]), int(told["vocab_size"])
        inner = inner or int(told.get("intermediate_size") or 4 * hidden)
        shapes = [
            (name, [int(side) for side in about["shape"]])
            for path in sorted(folder.glob("*.safetensors"))
            for name, about in _head(path).items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None
    if not shapes:
        return None
    adapted = sum(
        sum(shape) for name, shape in shapes if len(shape) == 2 and not name.endswith((*_EMBEDDINGS, *_HEADS))
    )
    return ModelSize(sum(math.prod(shape) for _, shape in shapes), adapted, layers, hidden, inner, kept, vocabulary)


def embedding_shapes(folder: Path) -> dict[str, list[int]]:
    """`embedding` and, where it has weights of its own, `head`: [rows, width]. Empty for what is not safetensors."""
    shapes: dict[str, list[int]] = {}
    for path in _files(folder):
        for name, told in _head(path).items():
            for kind, ends in (("embedding", _EMBEDDINGS), ("head", _HEADS)):
                if name.endswith(ends) and isinstance(told, dict) and isinstance(told.get("shape"), list):
                    shapes[kind] = told["shape"]
    return shapes


def _files(folder: Path) -> list[Path]:
    """The model's weight files; of many, only those that hold embeddings or heads."""
    try:
        listed = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError):
        return sorted(folder.glob("*.safetensors"))
    return sorted({folder / file for name, file in listed.items() if name.endswith((*_EMBEDDINGS, *_HEADS))})


def _head(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            told = json.loads(file.read(size)) if size <= _LONGEST_HEAD else {}
    except (OSError, ValueError, struct.error):
        return {}
    return told if isinstance(told, dict) else {}
