"""In-process training on a CPU or one GPU: policy, engine and optimizer share one process and one set of weights.

The engine's model is a second module tree over the trainer's tensors, so new weights need no copy.

Invariant: memory holds each state once: weights, the low halves of their float32 masters, two moments. (A master is the
float32 value of a bfloat16 weight, with which the optimizer computes.) Gradients exist only during an update. A row's
forward pass has no padding and computes shared prefixes once. Equal batch, checkpoint and thread count give
bit-identical weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.backbone.local.backbone import LocalBackbone

__all__ = ["LocalBackbone"]


def __getattr__(name: str) -> Any:
    """Import `LocalBackbone` at its first use, so that importing this package does not import torch."""
    if name == "LocalBackbone":
        from ajet.backbone.local.backbone import LocalBackbone

        return LocalBackbone
    raise AttributeError(name)
