"""What a model's config.json says that verl's settings depend on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ajet.schema.errors import UserError


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """None: the file does not say."""

    positions: int | None = None
    """Tokens of a sequence, at most."""
    heads: int | None = None
    """Attention heads of a layer."""
    kv_heads: int | None = None
    """Heads of its keys and values."""
    experts: int | None = None
    """Experts of a layer."""


def read_limits(folder: Path) -> ModelLimits:
    """Read a folder in Hugging Face layout. Raises UserError for a config.json that is no JSON object."""
    path = folder / "config.json"
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"The model's config.json can't be read: {error}", where=str(path)) from None
    if not isinstance(whole, dict):
        raise UserError("The model's config.json holds no JSON object.", where=str(path))
    text = whole["text_config"] if isinstance(whole.get("text_config"), dict) else {}

    def number(*names: str) -> int | None:
        found = [part[name] for part in (whole, text) for name in names if isinstance(part.get(name), int)]
        return found[0] if found else None

    return ModelLimits(
        positions=number("max_position_embeddings"),
        heads=number("num_attention_heads"),
        kv_heads=number("num_key_value_heads"),
        experts=number("num_experts", "num_local_experts", "n_routed_experts"),
    )
