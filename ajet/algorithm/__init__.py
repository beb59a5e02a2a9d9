"""Groups to advantages and token weights, and the losses: one algorithm a file, pure functions.

In: groups of scored episodes. Out: a `TrainingBatch` whose samples carry an advantage and a weight per token, and the
loss of one token as a function of its log-probability. Which algorithms there are is `ajet.kernel`'s to say, what one
is `contract`'s; `open_algorithm` finds the one that a configuration names. Invariant (DESIGN decision 8): the loss of a
batch is the sum over trained tokens of `weight * loss_t`, baselines are over episodes, and row borders never enter.
Credit is numpy; `loss_terms` and `importance` work on tensors and are imported by backbones only.
"""

from typing import TYPE_CHECKING

from ajet.algorithm.contract import Algorithm
from ajet.algorithm.registry import open_algorithm
from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet.algorithm.credit_assignment import assign_credit, build_discarded_outcomes

__all__ = ["Algorithm", "assign_credit", "build_discarded_outcomes", "open_algorithm"]

__getattr__ = load_lazily(__name__, {"credit_assignment": "assign_credit, build_discarded_outcomes"})
