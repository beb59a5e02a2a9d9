"""The `mcp_agent` workflow: a system prompt and the tools of `environment.use`.

It reads the keys of `rollout.mcp_agent`, a task and a model, and returns an answer with statistics of the attempt.
Invariants: a mistake of the model is reported to the model, or ends the attempt if the keys ask for an end, and counts
as the model's. A failure of a server or tool never counts as the model's. No text of the model is removed from the
record: shortening the context makes a fork.
"""

from ajet_mcp.agent.workflow import McpAgentWorkflow

__all__ = ["McpAgentWorkflow"]
