"""Tune the model inside a working LLM agent by reinforcement learning.

The public names are `exports` of plug-ins, including the kernel's, and each is loaded at first use. Invariant: `import
ajet` only defines names. The import loads only the standard library, registers no import hook and patches no library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ajet._version import __version__ as __version__

if TYPE_CHECKING:
    from ajet.algorithm.contract import Algorithm as Algorithm
    from ajet.commands.job import AgentJetJob as AgentJetJob
    from ajet.commands.tune import tune as tune
    from ajet.schema.process_reward import ProcessReward as ProcessReward
    from ajet.schema.task import Task as Task
    from ajet.schema.task import WorkflowOutput as WorkflowOutput
    from ajet.schema.task import WorkflowTask as WorkflowTask
    from ajet.workflow.async_sampler import AsyncSampler as AsyncSampler
    from ajet.workflow.breakpoint import bp as bp
    from ajet.workflow.tuner import AjetTuner as AjetTuner
    from ajet.workflow.tuner import ModelTuner as ModelTuner
    from ajet.workflow.workflow import Workflow as Workflow


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *import_module("ajet.config.plugins").list_exports()]
    if name.startswith("_"):  # Python and tools look up such names in any module
        raise AttributeError(f"module 'ajet' has no attribute {name!r}")
    return import_module("ajet.config.plugins").load_export(name)
