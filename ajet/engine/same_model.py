"""Whether two ways of computing a model's logits agree, and which keywords of its attention are computed.

Invariant: the verdict is that of the worst token, not of an average: a leak between neighbours touches few tokens. In
float32 nothing but the order of additions may differ. In bfloat16 a logit of 20 is rounded by a sixteenth, and a rare
token's logprob by more; there the probabilities are compared, where such a token counts for little. A keyword that says
how to attend is computed or raised, never dropped (`refuse_unknown_keywords`). Models pass all keywords of their
forward pass on; those that say nothing about attention, and only those, are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

EXACT = 1e-3
"""Nats between any two logprobs, in float32."""
ROUNDED = 0.15
"""Total variation between two distributions, in types of fewer bits."""
EAGER = "eager"
"""transformers' own plain attention, which every model is defined by: its other implementations leave out what their
kernels cannot do (soft-capped scores, sinks)."""


def logits_match(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """Whether logits [N, V] of a model in `dtype` are the same at each of N tokens, up to rounding."""
    return measure_largest_gap(found, wanted, dtype) <= (EXACT if dtype == torch.float32 else ROUNDED)


def measure_largest_gap(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> float:
    """The worst token's: in nats for float32, else as a total variation. Infinite where something is not finite; 0 of
    no tokens."""
    if not found.shape[0]:
        return 0.0
    have, want = (torch.log_softmax(logits.float(), -1) for logits in (found, wanted))
    gaps = (have - want).abs().amax(-1) if dtype == torch.float32 else (have.exp() - want.exp()).abs().sum(-1) / 2
    worst = float(gaps.max())
    return worst if worst == worst else float("inf")


def pad_sequences(sequences: Sequence[Any], device: torch.device) -> Tensor:
    """[B, L] ids, each sequence followed by zeros. A causal model computes each as if it were alone: it sees nothing
    behind its own end. One pass over all takes little longer than one over a single one, where memory is the bound."""
    longest = max(len(ids) for ids in sequences)
    padded = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(ids)] = torch.as_tensor(ids)
    return padded.to(device)


_MASKED_BY_KEYWORD = {"full_attention", "sliding_attention"}


def explain_unseen_masks(model: Any, windows: Mapping[int, int | None]) -> str:
    """Why an attention that masks by keyword alone would see more than the model does, or "". `windows`: the
    `sliding_window` that each layer asked for. A probe is shorter than the windows and chunks of most models."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    for layer, kind in enumerate(kinds):
        if kind not in _MASKED_BY_KEYWORD:
            return f"layer {layer} is of the kind {kind}"
        if kind == "sliding_attention" and layer in windows and windows[layer] is None:
            return f"layer {layer} does not say how far its sliding attention reaches"
    return ""


@contextmanager
def use_attention(model: Any, name: str) -> Iterator[None]:
    """Within the block all of `model` attends by the implementation `name`. It asks for no kernel, unlike transformers'
    `set_attn_implementation`, and warns of no model whose attention is fixed when it is built."""
    before = {id(config): (config, config._attn_implementation) for config in _list_configs(model)}
    for config, _ in before.values():
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, own in before.values():
            config._attn_implementation = own


def set_attention(model: Any, name: str) -> None:
    """Set the model's attention to `name` for good."""
    for config in _list_configs(model):
        config._attn_implementation = name


def _list_configs(model: Any) -> list[Any]:
    found = (getattr(module, "config", None) for module in model.modules())
    return [config for config in found if hasattr(config, "_attn_implementation")]


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


def refuse_unknown_keywords(implementation: str, keywords: Mapping[str, Any]) -> None:
    """Raises TypeError for the first of `keywords` that asks for something `implementation` does not compute. None and
    False ask for nothing, but for `is_causal`, whose False asks to look ahead."""
    for name, value in keywords.items():
        if name in _NOT_ABOUT_ATTENTION or name in _SWITCHED_OFF or value is None:
            continue
        if name == "is_causal" and value is True:
            continue
        if value is not False or name == "is_causal":
            raise TypeError(f"{implementation} does not compute what the keyword {name} of this model's attention asks")
