"""Proofs of recorded runs: derive each token again, and compare a run with its committed chain.

Invariant: a proof only reads the record, also while the run writes.
"""

from typing import TYPE_CHECKING

from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet_proof.tokens.proof import prove as prove

__all__ = ["prove"]

__getattr__ = load_lazily(__name__, {"tokens.proof": "prove"})
