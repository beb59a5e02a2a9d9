"""MCPSampler: the agent with tools over MCP, and an evaluation of one's own if it is wanted.

Invariant: it plays as `mcp_agent` does; see `ajet.workflow.async_sampler` for who judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.schema.task import WorkflowTask
from ajet.workflow.async_sampler import Record, evaluate_output
from ajet_mcp.agent.workflow import McpAgentWorkflow

if TYPE_CHECKING:
    from ajet.workflow.tuner import ModelTuner


class MCPSampler(McpAgentWorkflow):
    """Ready as it is; subclass it to write `evaluate_record`."""

    async def evaluate_record(self, record: Record) -> float | None:
        """The score of an attempt; None: no score. Left out: the judge of the configuration is asked."""
        raise NotImplementedError

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> Any:
        """Play, and evaluate."""
        output = await super().execute(workflow_task, tuner)
        if type(self).evaluate_record is MCPSampler.evaluate_record:
            return output
        return await evaluate_output(self.evaluate_record, workflow_task, output)
