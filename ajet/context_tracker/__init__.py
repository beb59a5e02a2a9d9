"""Calls in, timelines and packed rows out: what was sampled, each token once, in the context it was sampled in.

What enters: the `Call`s of an episode, then `Sample`s of a batch. What leaves: `Timeline`s, counted reasons for what
is not in them, and `PackedRow`s. Invariant: sampled = trained + the counted reasons; a token is trained at one place;
nothing is ever pasted into a context that the model did not see. Pure: no I/O, no torch.
"""

from typing import TYPE_CHECKING

from ajet.context_tracker.timeline_making import Snap, choose, cut_over_length, forks, snaps, timelines
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
    "forks",
    "pack",
    "snaps",
    "timelines",
    "tree_mask",
]

__getattr__ = load_lazily(__name__, {"packing": "PackedRow, Targets, Tree, pack, tree_mask"})
