"""The user's interface: `Workflow`, its task and output, `ModelTuner`, and `bp` for breakpoints.

Input: a task and the endpoints of the running episode. Output: clients bound to the episode's keys, and the workflow's
output. Invariant: a workflow reaches a model only through its endpoints. No module imports the gateway, an engine or
torch; an agent framework is imported only when its client is requested.
"""

from typing import Any

from ajet.config.plugins import list_exports, load_export
from ajet.schema.task import Task as Task
from ajet.schema.task import WorkflowOutput as WorkflowOutput
from ajet.schema.task import WorkflowTask as WorkflowTask
from ajet.workflow.breakpoint import bp as bp
from ajet.workflow.tuner import AjetTuner as AjetTuner
from ajet.workflow.tuner import ModelTuner as ModelTuner
from ajet.workflow.workflow import Workflow as Workflow

_OWN = ["AjetTuner", "ModelTuner", "Task", "Workflow", "WorkflowOutput", "WorkflowTask", "bp"]


def __getattr__(name: str) -> Any:
    """Return a name that a plug-in exports under `ajet.workflow`, loaded on first use."""
    if name == "__all__":
        return [*_OWN, *list_exports("workflow")]
    if name.startswith("_"):  # Python and tools look up such names in any module
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_export(f"workflow.{name}")
