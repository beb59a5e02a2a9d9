"""Proofs of a run's record: each token derived a second time, and a run held to what it committed.

Invariant: a proof reads what is recorded and changes nothing, also while a run goes on.
"""

from typing import TYPE_CHECKING

from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet_proof.tokens.proof import prove as prove

__all__ = ["prove"]

__getattr__ = load_lazily(__name__, {"tokens.proof": "prove"})
