"""`RobustDashScopeChatModel`, by AgentJet's name: an AgentScope model of another server.

Invariant: nothing is done here that `ajet.workflow.adapters.agentscope` does not do.
"""

from __future__ import annotations

from ajet.workflow.adapters.agentscope import other_model_class

RobustDashScopeChatModel = other_model_class()
"""`RobustDashScopeChatModel("qwen-plus", stream=False)`."""
