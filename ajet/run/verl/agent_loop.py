"""Another name of `ajet.backbone.verl.agent.loop`, for an agent-loop file of the user's."""

from ajet.backbone.verl.agent.loop import NothingToTrain, WorkflowLoop

__all__ = ["NothingToTrain", "WorkflowLoop"]
