"""Proves recorded runs: derives each token again, and compares a run's files with their chain of digests.

The record is the run's folder on disk. The chain is a file in it with linked digests of everything written before.
Invariant: a proof only reads the record, also while the run writes.
"""

from typing import TYPE_CHECKING

from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet_proof.tokens.proof import prove as prove

__all__ = ["prove"]

__getattr__ = load_lazily(__name__, {"tokens.proof": "prove"})
