"""Environments that run on their own: their description and their running state on this machine.

In: a YAML file or a name. Out: a description (plain values), and a running environment's state by its name.
"""

from ajet_environments.deployment.description import (
    EnvironmentDescription,
    EnvironmentPart,
    find_environment_file,
    read_description,
)
from ajet_mcp.running_environments import RunningEnvironment, running, state_folder

__all__ = [
    "EnvironmentDescription",
    "EnvironmentPart",
    "RunningEnvironment",
    "read_description",
    "find_environment_file",
    "running",
    "state_folder",
]
