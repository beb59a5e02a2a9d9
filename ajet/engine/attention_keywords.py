"""What an attention implementation of ours does with keywords that transformers' models hand to it.

Invariant: a keyword that says how to attend is computed or raised, never dropped. Models pass all of their forward
pass's keywords on, so that some arrive which say nothing about attention; those, and only those, are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NOT_ABOUT_ATTENTION = {
    "cache_position",
    "labels",
    "layer_idx",
    "logits_to_keep",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "use_cache",
}
_SWITCHED_OFF = {"dropout"}
"""The policy that samples has none, so neither has the one that trains."""


def refuse_unknown(implementation: str, keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for the first of `keywords` that asks for something `implementation` does not compute. None and
    False ask for nothing, but for `is_causal`, whose False asks to look ahead."""
    for name, value in keywords.items():
        if name in _NOT_ABOUT_ATTENTION or name in _SWITCHED_OFF or value is None:
            continue
        if name == "is_causal" and value is True:
            continue
        if value is not False or name == "is_causal":
            raise TypeError(f"{implementation} does not compute what the keyword {name} of this model's attention asks")
