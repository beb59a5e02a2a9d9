"""Checks whether two computations of a model's logits agree, and which attention keywords are supported.

Invariant: the worst token decides, not an average, because a leak between neighbours affects few tokens. In float32
only the order of additions may differ. In bfloat16 a logit of 20 is rounded by a sixteenth, and a rare token's logprob
by more; probabilities are compared there, because rare tokens count little. A keyword that affects attention is
computed or raises an error (`refuse_unknown_keywords`). Models pass on all keywords of their forward pass; only those
without effect on attention are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

EXACT = 1e-3
"""Maximum gap in nats between two logprobs, in float32."""
ROUNDED = 0.15
"""Maximum total variation between two distributions, in types with fewer bits."""
EAGER = "eager"
"""transformers' plain attention, the reference for every model.

The other implementations omit features missing in their kernels (soft-capped scores, sinks).
"""


def logits_match(logits: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Return True if two computations of a model's logits agree at every token, up to rounding.

    Args:
        logits: logits [N, V].
        expected: logits [N, V] of the reference computation.
        dtype: number format of the model, which determines the tolerance.
    """
    return measure_largest_gap(logits, expected, dtype) <= (EXACT if dtype == torch.float32 else ROUNDED)


def measure_largest_gap(found: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Return the distance of two logits at the worst token: nats in float32, else total variation.

    It is infinite if a value is not finite, and 0 for no tokens.
    """
    if not found.shape[0]:
        return 0.0
    log_found, log_expected = (torch.log_softmax(logits.float(), -1) for logits in (found, expected))
    gaps = (
        (log_found - log_expected).abs().amax(-1)
        if dtype == torch.float32
        else (log_found.exp() - log_expected.exp()).abs().sum(-1) / 2
    )
    worst = float(gaps.max())
    return worst if worst == worst else float("inf")  # NaN differs from itself


def pad_sequences(sequences: Sequence[Any], device: torch.device) -> Tensor:
    """Return ids [B, L], each sequence padded with zeros.

    A causal model computes each sequence as if alone, because tokens do not see later ones. A pass over several short
    sequences takes little longer than over one, because reading the weights from memory takes most of the time.
    """
    longest = max(len(ids) for ids in sequences)
    padded = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(ids)] = torch.as_tensor(ids)
    return padded.to(device)


_MASKED_BY_KEYWORD = {"full_attention", "sliding_attention"}


def explain_unseen_masks(model: Any, windows: Mapping[int, int | None]) -> str:
    """Return why attention masked only by keywords would see more than the model's own, or "".

    A probe is shorter than the windows and chunks of most models and cannot detect a missing mask.

    Args:
        windows: the `sliding_window` requested by each layer.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    for layer, kind in enumerate(kinds):
        if kind not in _MASKED_BY_KEYWORD:
            return f"its layer {layer} has attention of the type {kind}"
        if kind == "sliding_attention" and layer in windows and windows[layer] is None:
            return f"its layer {layer} does not state the size of its sliding window"
    return ""


@contextmanager
def use_attention(model: Any, name: str) -> Iterator[None]:
    """Within the block, all of `model` uses the attention implementation `name`.

    Unlike transformers' `set_attn_implementation`, no kernel is requested, and models with attention fixed at
    construction cause no warning.
    """
    original_names = {id(config): (config, config._attn_implementation) for config in _list_configs(model)}
    for config, _ in original_names.values():
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, attention_before in original_names.values():
            config._attn_implementation = attention_before


def set_attention(model: Any, name: str) -> None:
    """Set the model's attention to `name` permanently."""
    for config in _list_configs(model):
        config._attn_implementation = name


def _list_configs(model: Any) -> list[Any]:
    """Return the configurations of all modules that select an attention implementation."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return [config for config in configs if hasattr(config, "_attn_implementation")]


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
"""Ignored keywords: the sampling policy has no dropout, so training uses none."""


def refuse_unknown_keywords(implementation: str, keywords: Mapping[str, Any]) -> None:
    """Raise TypeError for the first keyword with an effect that `implementation` does not compute.

    None and False request no effect, except `is_causal`: False requests attention to later tokens.
    """
    for name, value in keywords.items():
        if name in _NOT_ABOUT_ATTENTION or name in _SWITCHED_OFF or value is None:
            continue
        if name == "is_causal" and value is True:
            continue
        if value is not False or name == "is_causal":
            raise TypeError(f"{implementation} does not implement the attention keyword {name}, which this model uses")
