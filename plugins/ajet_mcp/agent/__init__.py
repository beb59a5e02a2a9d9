"""The workflow `mcp_agent`: the model answers a task with the tools of `environment.use`.

It reads the keys of `rollout.mcp_agent`, a task and a model, and returns an answer with statistics of the attempt.
Invariants: a mistake of the model is reported to the model, or ends the attempt if the keys say so, and counts as the
model's. A failure of a server or tool never counts as the model's. The record keeps every token of the model: when the
context is shortened, the record continues in a second branch.
"""

from ajet_mcp.agent.workflow import McpAgentWorkflow

__all__ = ["McpAgentWorkflow"]
