"""The engine's own module tree over the trainer's tensors.

Invariant: the twin holds the very parameters of the model it was made from, so an optimizer step in place is seen at
once and costs no memory; what differs is its mode (always evaluation), its attention and its configuration.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from ajet.engine.rms_norm import cheapen_norms
from ajet.engine.same_model import attend_by
from ajet.engine.transformers.attention import NAME, register


def twin(model: Any) -> Any:
    """A copy of the modules of `model` with its parameters and buffers shared, in evaluation mode, attending by
    rows."""
    register()
    shared = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    other = copy.deepcopy(model, shared)
    attend_by(other, NAME)
    other.eval()
    cheapen_norms(other)
    return other


def copy_weights(source: Any, into: Any) -> None:
    """Refresh `into` from `source`, cast to its type, in place. Both have the same parameter names."""
    theirs = dict(source.named_parameters())
    with torch.no_grad():
        for name, parameter in into.named_parameters():
            parameter.copy_(theirs[name])
