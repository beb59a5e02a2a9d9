"""The algorithms that come with ajet: their names, what they compute and need, and where their code is.

Invariant: this table is the only list of them. The schema's values, what verl's layer takes and the table in
docs/algorithms.md come from it; a contract test holds every line of it against its class. It lies below the room of
the algorithms, and names their code as text, since settings are checked and documented without numpy and torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Need = Literal["group", "reference"]
"""group: at least two scored attempts at one task, to compare them. reference: `use_kl_in_reward`, which has the
reference model asked for its logprobs."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What is known of an algorithm without importing it."""

    name: str
    advantage: str
    """Of episode i, as a formula; r are rewards."""
    paper: str
    code: str
    """A reference to its class."""
    needs: frozenset[Need]


_ALL = (
    Descriptor(
        "grpo",
        "(r_i − mean(r)) / (std(r) + 1e-6), std with k − 1 in the denominator; r_i − mean(r) with "
        "`norm_adv_by_std: false`",
        "DeepSeekMath, arXiv 2402.03300, section 4.1.1; Dr.GRPO, arXiv 2503.20783, section 3.2",
        "ajet.algorithm.grpo->Grpo",
        frozenset({"group"}),
    ),
    Descriptor(
        "rloo",
        "r_i − mean of the other r_j",
        "Back to Basics, arXiv 2402.14740, section 3.3",
        "ajet.algorithm.rloo->Rloo",
        frozenset({"group"}),
    ),
    Descriptor(
        "reinforce_plus_plus",
        "(r_i − mean) / (std + 1e-6) over the episodes of the whole batch",
        "REINFORCE++, arXiv 2501.03262, section 3",
        "ajet.algorithm.reinforce_plus_plus->ReinforcePlusPlus",
        frozenset(),
    ),
)
ALGORITHMS = {each.name: each for each in _ALL}
"""By name."""
OWN = "algorithm.py->MyAlgorithm"
"""What a reference to one of the user's looks like."""
