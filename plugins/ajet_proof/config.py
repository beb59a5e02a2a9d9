"""Configuration keys of proofs below `context_tracker`."""

from __future__ import annotations

from ajet.config.schema.base import key
from ajet.config.schema.extended import PluginKeys


class ProofKeys(PluginKeys):
    """Keys of `context_tracker`."""

    proof_sample: int = key(
        2,
        "Episodes of each training step proven as by `ajet prove`, as metrics `proof/…`. 0 disables the proof.",
        training=False,
        ge=0,
    )
