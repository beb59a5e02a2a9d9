"""The in-process engine: a batched decoding loop of ours over the forward pass of any transformers model.

`TransformersEngine(model)` implements the TokenEngine contract in a thread of its own. Requests join running ones at
the next step; tokens of all rows, whole prompts and single next tokens alike, go through one forward pass without
padding; keys and values of a prefix are computed once, be it shared by the samples of a group or by the turns of a
conversation. Invariants: a reply depends on its own prompt, key and weights only (but for float noise of batching);
no forward pass runs while the engine is paused; every token says the version whose weights sampled it.

The files: `twin` (the model that shares the trainer's tensors), `rows` and `pool` (where keys and values lie),
`plan` (which tokens a step computes), `attention` (over those rows), `sampling`, `engine` (the thread).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.engine.transformers.engine import TransformersEngine

__all__ = ["TransformersEngine"]


def __getattr__(name: str) -> Any:
    """The engine on first use: it imports torch."""
    if name == "TransformersEngine":
        from ajet.engine.transformers.engine import TransformersEngine

        return TransformersEngine
    raise AttributeError(name)
