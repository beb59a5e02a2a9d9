"""The in-process engine: a batched decoding loop over the forward pass of any transformers model.

`TransformersEngine(model)` implements the TokenEngine contract in its own thread. Requests join running ones at the
next step. Tokens of all rows (complete prompts and single next tokens) share one forward pass without padding. Keys and
values of a prefix are computed once, for samples of a group and for turns of a conversation.

Invariant: a reply depends only on its prompt, draw key and weights, except for float noise of batching. A paused engine
runs no forward pass. Every token carries the version of the weights that sampled it.

Modules: `rows` and `pool` store keys and values, `plan` lays out the tokens of a step, `attention` computes over the
rows and shares the trainer's tensors, `sampling` draws tokens, `engine` runs the thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.engine.transformers.engine import TransformersEngine

__all__ = ["TransformersEngine"]


def __getattr__(name: str) -> Any:
    """Import the engine, and with it torch, on first use."""
    if name == "TransformersEngine":
        from ajet.engine.transformers.engine import TransformersEngine

        return TransformersEngine
    raise AttributeError(name)
