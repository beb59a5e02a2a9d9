"""Proofs of a run's record: each token derived a second time, and a run held to what it committed.

Invariant: a proof reads what is recorded and changes nothing, also while a run goes on.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet_proof.tokens.proof import prove as prove

__all__ = ["prove"]


def __getattr__(name: str) -> Any:
    """Load `prove` when it is used: ajet reads this package's `plugin` at every start."""
    if name != "prove":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ajet_proof.tokens.proof import prove

    return prove
