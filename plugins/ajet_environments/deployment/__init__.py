"""An environment that stands by itself: what it consists of, and where it runs on this machine.

What enters: a YAML file or a name. What leaves: a description (values), and a running environment's state, by its name.
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
