"""Export `ModelTuner` and `AjetTuner` under AgentJet's module name.

Invariant: the implementation is in `ajet.workflow.tuner`.
"""

from __future__ import annotations

from ajet.workflow.tuner import AjetTuner, ModelTuner

__all__ = ["AjetTuner", "ModelTuner"]
