"""The agent that comes with ajet: a system prompt, and the tools of `environment.use`.

In: the keys of `rollout.mcp_agent`, a task, a model. Out: an answer, and what happened on the way. Invariants: what the
model got wrong is told to it, or ends the attempt, as the keys say, and is counted as its own; what a server or a tool
did is never counted so. Nothing that the model wrote is taken back: a context that is shortened is a fork.
"""

from ajet_mcp.agent.workflow import McpAgentWorkflow

__all__ = ["McpAgentWorkflow"]
