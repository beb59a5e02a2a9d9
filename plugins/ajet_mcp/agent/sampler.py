"""MCPSampler: the MCP agent, with an optional evaluation written by the user.

Invariant: attempts run exactly as with `mcp_agent`. `ajet.workflow.async_sampler` describes the scoring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.schema.task import WorkflowTask
from ajet.workflow.async_sampler import Record, evaluate_output
from ajet_mcp.agent.workflow import McpAgentWorkflow

if TYPE_CHECKING:
    from ajet.workflow.tuner import ModelTuner


class MCPSampler(McpAgentWorkflow):
    """Runs the MCP agent as it is. Subclass it to write `evaluate_record`."""

    async def evaluate_record(self, record: Record) -> float | None:
        """Return the score of an attempt, or None for no score. Without this method the configured judge scores."""
        raise NotImplementedError

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> Any:
        """Run the attempt, then evaluate its record."""
        output = await super().execute(workflow_task, tuner)
        if type(self).evaluate_record is MCPSampler.evaluate_record:
            return output
        return await evaluate_output(self.evaluate_record, workflow_task, output)
