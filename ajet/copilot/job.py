"""Export `AgentJetJob` under AgentJet's module name.

Invariant: the implementation is in `ajet.commands.job`.
"""

from __future__ import annotations

from ajet.commands.job import AgentJetJob

__all__ = ["AgentJetJob"]
