"""What Trinity asks of an algorithm: credit before the trainer, no critic, a reference model where the loss has a KL
term.

Invariant: nothing of an algorithm is here: credit and loss are ours.
"""

from __future__ import annotations

from typing import Any

from trinity.algorithm.algorithm import AlgorithmType


class WithoutReference(AlgorithmType):
    """`algorithm.algorithm_type`."""

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Trinity's defaults; ajet's layer says all."""
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
        """Likewise."""
        return {}
