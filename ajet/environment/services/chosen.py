"""Which environment the episodes of an experiment are played in.

Invariant: the tasks of an environment service are played in that service; `environment.use` names one for the tasks of
any other reader. Whatever it names is asked as an environment service: what is none is served as one beside the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ajet.config.services import Service
from ajet.environment.addresses import checked, tool_kind
from ajet.environment.services.sources import PACKAGES, open_world
from ajet.environment.services.wire import EnvService
from ajet.schema.commands import command
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.environment.use"
SERVICE_KEY = "ajet.task_reader.env_service.env_url"
WIRES = {"openenv": "OpenEnv", "nemo_gym": "NeMo Gym"}
"""Ecosystems that are reached at an address, and their names."""


@dataclass(frozen=True)
class Chosen:
    """An environment service, and how it is left."""

    service: EnvService
    params: Mapping[str, Any] = field(default_factory=dict)
    """What instances are created with."""
    leave: Callable[[], None] | None = None

    def close(self) -> None:
        """End what was begun for it. Idempotent."""
        if self.leave is not None:
            self.leave()


def env_service_of(experiment: Experiment) -> EnvService | None:
    """The service whose address the experiment names; None where it names none. Raises ConfigError."""
    reader = experiment.ajet.task_reader
    if reader.type == "env_service":
        return service_at(reader.env_service.env_url, SERVICE_KEY, reader.env_service.env_type)
    used = experiment.ajet.environment.use
    if used and is_service_url(used):
        return service_at(used, KEY)
    return None


def service_at(url: str, where: str, env_type: str = "") -> EnvService:
    """Raises ConfigError for what is no address."""
    return EnvService(checked(url, where, "an environment service", "http://HOST:PORT"), env_type)


def how_to_start() -> str:
    """Advice for a service that is not there."""
    serve = command("env", "serve", "FILE.py->MyEnv", "--port", "N")
    return f"start it before the run (`{serve}`, or `ajet.services` in the YAML)"


def services_of(experiment: Experiment) -> Iterator[Service]:
    """For the list of what a run stands on."""
    service, used = env_service_of(experiment), experiment.ajet.environment.use or ""
    do = how_to_start()
    if service is not None:
        key = KEY if used else SERVICE_KEY
        expected = "an environment service"
        yield Service("environment service", service.url, key, service.health, expected, do)
    kind, _, address = used.partition(":")
    if kind in WIRES:
        from ajet.environment.services.openenv import health

        yield Service(
            f"{WIRES[kind]} server",
            address,
            KEY,
            lambda seconds: health(address, seconds),
            f"a server of {WIRES[kind]}'s protocol",
            "start it before the run (by hand, or by `ajet.services` in the YAML)",
        )


def is_service_url(used: str) -> bool:
    """Whether it is the address of an environment service: an http one that is not of MCP."""
    return used.startswith(("http://", "https://")) and tool_kind(used) is None


def is_world(used: str) -> bool:
    """Whether it names a world that is served beside the run."""
    return used.partition(":")[0] in (*PACKAGES, *WIRES) or "->" in used


def chosen(experiment: Experiment) -> Chosen | None:
    """The environment; None where the experiment names none. Raises UserError."""
    reader, used = experiment.ajet.task_reader, experiment.ajet.environment.use
    if used and reader.type == "env_service":
        raise ConfigError(
            "Tasks of an environment service are played in that service, and another environment is named, too.",
            where=KEY,
            expected="null with ajet.task_reader.type: env_service",
        )
    service = env_service_of(experiment)
    if experiment.ajet.environment.replay and (service is not None or is_world(used or "")):
        raise ConfigError(
            "A recorded run answers for tools, and these tasks are played in an environment that keeps a state of its "
            "own: of that the record has what the agent saw, not the rewards and scores.",
            where="ajet.environment.replay",
            expected="null with an environment service (OpenEnv, NeMo Gym, gymnasium and the like among them)",
            do=f"leave it out; `{command('rejudge')}` scores the recorded episodes again without the environment",
        )
    if service is not None:
        asked = reader.env_service.env_action_preference if reader.type == "env_service" else None
        return Chosen(service, {} if asked is None else {"env_action_preference": asked})
    if not used or not is_world(used):
        return None
    from ajet.environment.services.serving import Beside

    beside = Beside(open_world(used, base=experiment.base))
    return Chosen(beside.service, leave=beside.close)
