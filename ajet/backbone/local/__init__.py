"""In-process training on a CPU or one GPU: policy, engine and optimizer in one process, on one set of weights.

In: training batches. Out: new weights, which the engine samples with without a copy: its model is a second module
tree over the same tensors. Invariants: what must be held is held once (weights, the low halves of their float32
masters, two moments; gradients only during an update); a row's forward pass has no padding and computes shared
prefixes once; the same batch, checkpoint and thread count give bit-identical weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.backbone.local.backbone import LocalBackbone

__all__ = ["LocalBackbone"]


def __getattr__(name: str) -> Any:
    if name == "LocalBackbone":
        from ajet.backbone.local.backbone import LocalBackbone

        return LocalBackbone
    raise AttributeError(name)
