"""The served model in the shape of Anthropic's Models API, for clients that send `anthropic-version`."""

from __future__ import annotations

from typing import Any


def model_info(name: str, max_input_tokens: int, max_tokens: int) -> dict[str, Any]:
    """Return a model's entry; the limits are in tokens."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": max_input_tokens,
        "max_tokens": max_tokens,
    }


def model_page(models: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the only page of a list of models."""
    return {
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
