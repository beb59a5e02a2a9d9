"""Choose the environment of an experiment's episodes.

Invariant: tasks of an environment service are played in that service. `environment.use` names an environment for the
tasks of other readers. Every environment is used as an environment service. A plug-in serves its own worlds
(`Plugin.environments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.plugin import PluginPart, load_code
from ajet.config.plugins import find_part
from ajet.environment.services.wire import EnvService
from ajet.schema.addresses import find_tool_kind, require_address
from ajet.schema.commands import format_command
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.environment.use"
SERVICE_KEY = "ajet.task_reader.env_service.env_url"
CLASS = "class"
"""Name of the worlds that are a class of the user's own."""


@dataclass(frozen=True)
class ChosenEnvironment:
    """An environment service and its cleanup."""

    service: EnvService
    params: Mapping[str, Any] = field(default_factory=dict)  # parameters for creating instances
    leave: Callable[[], None] | None = None

    def close(self) -> None:
        """Stop the served world. Idempotent."""
        if self.leave is not None:
            self.leave()


def env_service_of(experiment: Experiment) -> EnvService | None:
    """Return the environment service of the experiment's address, or None without an address.

    The address is the task reader's, else `environment.use`. Raises ConfigError for an invalid address.
    """
    reader = experiment.ajet.task_reader
    if reader.type == "env_service":
        return service_at(reader.env_service.env_url, SERVICE_KEY, reader.env_service.env_type)
    environment = experiment.ajet.environment.use
    if environment and is_service_url(environment):
        return service_at(environment, KEY)
    return None


def service_at(url: str, where: str, env_type: str = "") -> EnvService:
    """Return the environment service at an address. Raises ConfigError, with the key `where`, for an invalid address.

    Args:
        env_type: Name of the environment that the service plays. "": the service's default.
    """
    return EnvService(require_address(url, where, "an environment service", "http://HOST:PORT"), env_type)


def is_service_url(environment_use: str) -> bool:
    """Return True for an http address, unless the address is an MCP server."""
    return environment_use.startswith(("http://", "https://")) and find_tool_kind(environment_use) is None


def is_world(environment_use: str) -> bool:
    """Return True if `environment.use` is the name of a world, an environment served by a plug-in."""
    return _find_world(environment_use) is not None


def _find_world(environment_use: str) -> PluginPart | None:
    """Return the plug-in part that serves the world named by `environment.use`, or None.

    A world is named KIND:NAME, or is a reference to the user's class (FILE->CLASS).
    """
    name, colon, _ = environment_use.partition(":")
    if "->" in environment_use:
        return find_part("environment", CLASS)
    return find_part("environment", name) if colon and name != CLASS else None


def choose_environment(experiment: Experiment) -> ChosenEnvironment | None:
    """Return the environment in which the experiment's tasks are played, or None without one.

    A world of a plug-in is served from now on, until the environment is closed.

    Raises:
        UserError: the settings exclude each other, or the world cannot be served.
    """
    reader, environment = experiment.ajet.task_reader, experiment.ajet.environment.use
    if environment and reader.type == "env_service":
        raise ConfigError(
            "The tasks of an environment service run in that service, but environment.use sets another environment.",
            where=KEY,
            expected="null with ajet.task_reader.type: env_service",
        )
    service = env_service_of(experiment)
    if experiment.ajet.environment.replay and (service is not None or is_world(environment or "")):
        raise ConfigError(
            "A replay contains the tools' results only, but these tasks run in an environment with its own "
            "state, whose rewards and scores it does not contain.",
            where="ajet.environment.replay",
            expected="null with an environment service (also OpenEnv, NeMo Gym and gymnasium)",
            do=f"remove the key; `{format_command('rejudge')}` scores the recorded episodes again without the "
            "environment",
        )
    if service is not None:
        preference = reader.env_service.env_action_preference if reader.type == "env_service" else None
        return ChosenEnvironment(service, {} if preference is None else {"env_action_preference": preference})
    world = _find_world(environment or "")
    if world is None:
        return None
    serve_world: Callable[[str, Path], ChosenEnvironment] = load_code(world.code)
    return serve_world(environment or "", experiment.base)
