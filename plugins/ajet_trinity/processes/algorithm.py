"""Trinity's algorithm types: credit before the trainer, no critic, a reference model for a KL term.

Invariant: ajet computes credit and loss. The types contain no algorithm.
"""

from __future__ import annotations

from typing import Any

from trinity.algorithm.algorithm import AlgorithmType


class WithoutReference(AlgorithmType):
    """The value of `algorithm.algorithm_type` without a reference model."""

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Return no defaults; ajet's layer sets all keys."""
        return {}


class WithReference(AlgorithmType):
    """The algorithm with a reference model."""

    use_critic = False
    use_reference = True
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return {}
