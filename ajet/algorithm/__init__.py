"""Converts groups of episodes into advantages, token weights and losses. Each file holds one pure algorithm.

A group is all attempts (rollouts) at one task. Input: groups of scored episodes. Output: a `TrainingBatch` with an
advantage and a weight per token, and the loss of a token as a function of its log-probability. `ajet.kernel` lists the
algorithms, `contract` defines their interface, and `open_algorithm` opens the algorithm that a configuration names.

Invariant (DESIGN decision 8): the loss of a batch is the sum of `weight * loss_t` over trained tokens. Baselines are
computed over episodes. The borders of packed rows never influence a loss. Credit (the advantages) is computed in numpy.
`loss_terms` and `importance` work on tensors, and only backbones (trainer integrations) import them.
"""

from typing import TYPE_CHECKING

from ajet.algorithm.contract import Algorithm
from ajet.algorithm.registry import open_algorithm
from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet.algorithm.credit_assignment import assign_credit, build_discarded_outcomes

__all__ = ["Algorithm", "assign_credit", "build_discarded_outcomes", "open_algorithm"]

__getattr__ = load_lazily(__name__, {"credit_assignment": "assign_credit, build_discarded_outcomes"})
