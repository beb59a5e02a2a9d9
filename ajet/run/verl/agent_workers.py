"""Another name of `ajet.backbone.verl.agent.workers`, for verl's `agent_loop_manager_class`."""

from ajet.backbone.verl.agent.workers import AgentWorkers

__all__ = ["AgentWorkers"]
