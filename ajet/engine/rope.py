"""Rotary embeddings whose frequencies depend on a length are fixed once, by the longest sequence that may come.

Invariant: what a token is turned by depends on its position alone. transformers chooses the frequencies of `longrope`
(Phi 3 and 4, MiniCPM) and `dynamic` by the longest position of a forward pass, so that packed samples and the rows of
a step would change each other, and a reply that grows past the border would change its own past. vLLM chooses them by
its `max_model_len`; so do we, for engine and trainer alike.
"""

from __future__ import annotations

from typing import Any

FROZEN = "frozen"
"""The `rope_type` of a module that no longer follows the positions that it is given."""


def freeze_rope(model: Any, max_model_len: int) -> None:
    """Fix all frequencies of `model`, in place, for sequences of up to `max_model_len` tokens. Its configuration, and
    so what is saved of it, stays as it is."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str) and hasattr(module, "inv_freq"):
            module.rope_type = _freeze(module, kind, None, max_model_len)
        elif isinstance(kind, dict):
            module.rope_type = {layer: _freeze(module, name, layer, max_model_len) for layer, name in kind.items()}


def _freeze(module: Any, kind: str, layer: str | None, longest: int) -> str:
    """Fix those of one kind of layer; answers the kind that the module is to take itself for."""
    if kind != "longrope" and "dynamic" not in kind:
        return kind
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    said = module.config.rope_parameters
    said = said if layer is None else said[layer]
    border = said["original_max_position_embeddings"] if kind == "longrope" else module.original_max_seq_len
    if longest > border:
        prefix = "" if layer is None else f"{layer}_"
        known = getattr(module, f"{prefix}inv_freq")
        chosen = {} if layer is None else {"layer_type": layer}
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](module.config, known.device, seq_len=longest, **chosen)
        module.register_buffer(f"{prefix}inv_freq", frequencies.to(known.dtype), persistent=False)
        setattr(module, f"{prefix}attention_scaling", scaling)
    return FROZEN
