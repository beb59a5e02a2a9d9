"""`ModelTuner`, by AgentJet's names.

Invariant: nothing is done here that `ajet.workflow.tuner` does not do.
"""

from __future__ import annotations

from ajet.workflow.tuner import AjetTuner, ModelTuner

__all__ = ["AjetTuner", "ModelTuner"]
