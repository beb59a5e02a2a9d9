"""`AgentJetJob`, by AgentJet's name.

Invariant: nothing is done here that `ajet.commands.job` does not do.
"""

from __future__ import annotations

from ajet.commands.job import AgentJetJob

__all__ = ["AgentJetJob"]
