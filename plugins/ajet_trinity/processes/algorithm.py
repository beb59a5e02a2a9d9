"""Trinity's algorithm types: advantages before the trainer, no critic, and a reference model for a KL term.

Invariant: ajet computes advantages and loss. The types contain no algorithm.
"""

from __future__ import annotations

from typing import Any

from trinity.algorithm.algorithm import AlgorithmType


class WithoutReference(AlgorithmType):
    """Trinity's `algorithm.algorithm_type` for a run without a reference model."""

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Return no defaults, because the YAML layer of ajet sets all keys."""
        return {}


class WithReference(AlgorithmType):
    """Trinity's `algorithm.algorithm_type` for a run with a reference model."""

    use_critic = False
    use_reference = True
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Return no defaults, because the YAML layer of ajet sets all keys."""
        return {}
