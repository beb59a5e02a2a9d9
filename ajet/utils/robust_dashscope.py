"""Export `RobustDashScopeChatModel` under AgentJet's module name: an AgentScope model of another server.

Invariant: the implementation is in `ajet.workflow.adapters.agentscope`.
"""

from __future__ import annotations

from ajet.workflow.adapters.agentscope import other_model_class

RobustDashScopeChatModel = other_model_class()
"""AgentScope chat model of another server, used as `RobustDashScopeChatModel("qwen-plus", stream=False)`."""
