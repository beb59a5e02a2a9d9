"""Configuration keys of proofs below `context_tracker`."""

from __future__ import annotations

from ajet.config.schema.base import key
from ajet.config.schema.extended import PluginKeys


class ProofKeys(PluginKeys):
    """The keys that this package adds to the section `context_tracker`."""

    proof_sample: int = key(
        2,
        "Number of episodes of each training step that are checked as by `ajet prove`; results are the metrics "
        "`proof/…`. 0: none.",
        training=False,
        ge=0,
    )
