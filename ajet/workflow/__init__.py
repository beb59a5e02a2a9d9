"""What users subclass and receive: `Workflow`, its task and output, `ModelTuner`, and `bp` to stop in the code.

What enters: a task and the endpoints of the running episode. What leaves: clients bound to the episode's keys, and the
workflow's output. Invariant: a workflow reaches a model only through endpoints it was handed; nothing here knows the
gateway, an engine or torch, and an agent framework is imported only when its client is asked for.
"""

from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow.breakpoint import bp
from ajet.workflow.command import CommandWorkflow
from ajet.workflow.tuner import AjetTuner, ModelTuner
from ajet.workflow.workflow import Workflow

__all__ = ["AjetTuner", "CommandWorkflow", "ModelTuner", "Task", "Workflow", "WorkflowOutput", "WorkflowTask", "bp"]
