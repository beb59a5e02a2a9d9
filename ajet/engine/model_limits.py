"""Reads a model's size limits from config.json without loading the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.engine.dimensions import list_linear_layers
from ajet.schema.errors import UserError


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """A model's limits, each None if no file contains it."""

    positions: int | None = None
    """Maximum number of tokens in a sequence."""
    heads: int | None = None
    """Attention heads of a layer."""
    kv_heads: int | None = None
    """Heads of keys and values."""
    experts: int | None = None
    """Number of experts of a layer."""
    parameters: int | None = None
    """Number of parameters in the weights."""
    linear_layers: tuple[str, ...] = ()
    """Names of the linear layers except the head, as adapters name them; empty if no file contains them."""
    images: bool = False
    """True if the model accepts images."""
    cached_numbers: int | None = None
    """Cached numbers per token of a sequence; None also if some layers cache fewer than all tokens."""
    rotary_border: int | None = None
    """Length at which the rotary frequencies change (longrope, dynamic); None also for fixed frequencies."""


def read_limits(folder: Path) -> ModelLimits:
    """Read a model's limits from the files of its folder, in Hugging Face layout.

    Raises:
        UserError: config.json is missing or not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"The model's config.json cannot be read: {error}", where=str(path)) from None
    if not isinstance(config, dict):
        raise UserError("The model's config.json does not contain a JSON object.", where=str(path))
    text_config = config["text_config"] if isinstance(config.get("text_config"), dict) else {}

    def number(*names: str) -> int | None:
        """Return the first integer under one of the names, in config.json or its section of the text model."""
        values = [
            section[name] for section in (config, text_config) for name in names if isinstance(section.get(name), int)
        ]
        return values[0] if values else None

    return ModelLimits(
        positions=number("max_position_embeddings"),
        heads=number("num_attention_heads"),
        kv_heads=number("num_key_value_heads"),
        experts=number("num_experts", "num_local_experts", "n_routed_experts"),
        parameters=_count_parameters(
            folder, str(config.get("dtype") or config.get("torch_dtype") or text_config.get("dtype"))
        ),
        linear_layers=list_linear_layers(folder),
        images=isinstance(config.get("vision_config"), dict),
        cached_numbers=_count_cached_numbers({**config, **text_config}),
        rotary_border=_find_rotary_border({**config, **text_config}),
    )


def warn_unreplayed_experts(folder: Path) -> None:
    """Warn if the model is a mixture of experts, since training computes their choice anew.

    It does not reuse the choice made while sampling.
    """
    if experts := read_limits(folder).experts:
        logger.warning(
            "The model is a mixture of {} experts, and this training has no router replay: for some tokens the trainer "
            "chooses other experts than the engine did, and their log-probabilities differ. Watch mismatch_kl and "
            "logprob_gap_max. verl replays the engine's choices with strategy: megatron (docs/verl.md)",
            experts,
        )


_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PARTIAL = ("sliding_window", "layer_types", "kv_lora_rank", "layers_block_type", "full_attention_interval")
"""If one of the keys is set, some layers cache less than the keys and values of every token."""


def _count_parameters(folder: Path, dtype: str) -> int | None:
    """Return the number of weights by the size of the weight files, or None for unknown files or formats."""
    stored_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return stored_bytes // _BYTES[dtype] if stored_bytes and dtype in _BYTES else None


def _count_cached_numbers(config: dict[str, Any]) -> int | None:
    """Return the numbers cached per token: keys and values of all layers. None if unknown or if some layers cache
    fewer.
    """
    if any(config.get(name) for name in _PARTIAL):
        return None
    heads = config.get("num_attention_heads")
    layers, kv_heads = config.get("num_hidden_layers"), config.get("num_key_value_heads") or heads
    if not (isinstance(heads, int) and isinstance(layers, int) and isinstance(kv_heads, int) and heads):
        return None
    size = config.get("head_dim") or config.get("hidden_size", 0) // heads
    return 2 * layers * kv_heads * size or None


def _find_rotary_border(config: dict[str, Any]) -> int | None:
    """Return the length at which a model's rotary embedding changes its frequencies, or None for fixed frequencies."""
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict):
        return None
    # The rope parameters are those of all layers, or nested by kind of layer.
    for rope_section in (rope, *(section for section in rope.values() if isinstance(section, dict))):
        kind = str(rope_section.get("rope_type") or rope_section.get("type"))
        if kind in ("longrope", "su") or "dynamic" in kind:
            original_key = "original_max_position_embeddings"
            border = rope_section.get(original_key) or config.get(original_key) or config.get("max_position_embeddings")
            return border if isinstance(border, int) else None
    return None
