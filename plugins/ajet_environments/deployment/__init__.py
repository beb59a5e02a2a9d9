"""Environments of `ajet env up`: the YAML file that describes one, and instances of its servers.

Input: a YAML file or the name of an environment included in a plug-in. Output: an `EnvironmentDescription`, and
functions that start its servers.
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
