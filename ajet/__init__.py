"""Tune the model inside a working LLM agent by reinforcement learning.

The names users import, each loaded when first used. Invariant: `import ajet` only defines names. It imports nothing
outside the standard library, registers no import hook and patches no library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Task": "ajet.schema.task",
    "WorkflowTask": "ajet.schema.task",
    "WorkflowOutput": "ajet.schema.task",
    "ProcessReward": "ajet.schema.process_reward",
    "Workflow": "ajet.workflow.workflow",
    "CommandWorkflow": "ajet.workflow.command",
    "AsyncSampler": "ajet.workflow.async_sampler",
    "MCPSampler": "ajet.workflow.mcp_agent.sampler",
    "ModelTuner": "ajet.workflow.tuner",
    "AjetTuner": "ajet.workflow.tuner",
    "bp": "ajet.workflow.breakpoint",
    "Algorithm": "ajet.algorithm.contract",
    "AgentJetJob": "ajet.run.job",
    "tune": "ajet.run.tune",
}
__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from ajet.algorithm.contract import Algorithm as Algorithm
    from ajet.run.job import AgentJetJob as AgentJetJob
    from ajet.run.tune import tune as tune
    from ajet.schema.process_reward import ProcessReward as ProcessReward
    from ajet.schema.task import Task as Task
    from ajet.schema.task import WorkflowOutput as WorkflowOutput
    from ajet.schema.task import WorkflowTask as WorkflowTask
    from ajet.workflow.async_sampler import AsyncSampler as AsyncSampler
    from ajet.workflow.breakpoint import bp as bp
    from ajet.workflow.command import CommandWorkflow as CommandWorkflow
    from ajet.workflow.mcp_agent.sampler import MCPSampler as MCPSampler
    from ajet.workflow.tuner import AjetTuner as AjetTuner
    from ajet.workflow.tuner import ModelTuner as ModelTuner
    from ajet.workflow.workflow import Workflow as Workflow


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ajet' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
