"""Turns calls into timelines and packed rows: each sampled token once, in the context of its sampling.

A timeline is one sequence of tokens to train on, with a mask of the sampled ones. Input: the `Call`s of an episode,
then the `Sample`s of a batch. Output: `Timeline`s, counts of untrained tokens by reason, and `PackedRow`s. Invariants:
sampled tokens = trained tokens + the counted rest; a token is trained at one place; no token is pasted into a context
unknown to the model. Pure: no I/O, no torch.
"""

from typing import TYPE_CHECKING

from ajet.context_tracker.timeline_making import Snap, choose, cut_over_length, snaps, timelines
from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet.context_tracker.packing import PackedRow, Targets, Tree, pack, tree_mask

__all__ = [
    "PackedRow",
    "Snap",
    "Targets",
    "Tree",
    "choose",
    "cut_over_length",
    "pack",
    "snaps",
    "timelines",
    "tree_mask",
]

__getattr__ = load_lazily(__name__, {"packing": "PackedRow, Targets, Tree, pack, tree_mask"})
