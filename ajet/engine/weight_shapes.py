"""Shapes of weights, read from the head of the files that hold them: neither torch nor the weights are loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
_LONGEST_HEAD = 100_000_000


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
    """Of a model in many files only those that hold what is looked for."""
    try:
        listed = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError):
        return sorted(folder.glob("*.safetensors"))
    return sorted({folder / file for name, file in listed.items() if name.endswith((*_EMBEDDINGS, *_HEADS))})


def _head(path: Path) -> dict[str, Any]:
    """What a safetensors file begins with: 8 bytes of length, then JSON."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            told = json.loads(file.read(size)) if size <= _LONGEST_HEAD else {}
    except (OSError, ValueError, struct.error):
        return {}
    return told if isinstance(told, dict) else {}
