"""`AgentJetJob`, by AgentJet's name.

Invariant: nothing is done here that `ajet.run.job` does not do.
"""

from __future__ import annotations

from ajet.run.job import AgentJetJob

__all__ = ["AgentJetJob"]
