"""The section `services`: programs run alongside a training run, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ajet.config.schema.base import Section, key
from ajet.config.schema.extended import PluginKeys
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

AGENTJETS_READY = "Starting server on"
"""The line AgentJet's services print once ready."""
AGENTJETS_TIMEOUT_S = 3600.0


class Companion(Section):
    """One program run alongside a training run."""

    command: str | list[str] = key("", "Program and arguments; no shell interprets them.", training=False, min_length=1)
    cwd: str | None = key(None, "Working folder of the service; null: the YAML's folder.", training=False)
    env: dict[str, str] = key({}, "Environment variables in addition to those of the run.", training=False)
    ready: str | None = key(
        None,
        "How ajet sees that the service is ready: an address that answers (http://…, tcp://HOST:PORT), or a text "
        "that it prints; null: at once.",
        training=False,
    )
    timeout: float = key(60.0, "Seconds until the service must be ready.", training=False, gt=0)
    restarts: int = key(
        3,
        "How many times in a row the service is started again after an error or a kill; after a minute of being "
        "ready the count begins anew. 0: never.",
        training=False,
        ge=0,
    )
    confined: bool = key(
        False,
        "Run the service in a sandbox (bubblewrap): no network except its one port, that of `ready`; no files of "
        "this machine except programs, its folder and `shows`, all read-only; no variables except `env`. Refused "
        "if no sandbox works.",
        training=False,
    )
    shows: list[str] = key([], "Further folders that a confined service may read.", training=False)
    only_with_flag: bool = key(False, "Start the service only if `--with-NAME` is given.", training=False)


class ServiceKeys(PluginKeys):
    """The key `services` of the configuration."""

    services: dict[str, Companion] = key(
        {},
        "Programs that a run needs, by name; ajet starts them before the run and stops them after it. `{command, "
        "cwd, env, ready, timeout, restarts, confined, shows, only_with_flag}`, see docs/environments.md.",
        training=False,
    )


def choose_services(
    experiment: Experiment, flags: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Companion]:
    """Return the services to start, by name: those of the YAML and those selected by `--with-NAME`.

    A name missing in the YAML is one of AgentJet's services, described by the environment variables NAME_PATH (its
    folder) and NAME_SCRIPT (its shell command).

    Args:
        flags: the names NAME of the given `--with-NAME` options.
        environment: environment variables.

    Raises:
        UserError: a service is unknown or has no command.
    """
    declared = ServiceKeys.of(experiment.ajet).services
    services = {name: service for name, service in declared.items() if not service.only_with_flag or name in flags}
    for name in flags:
        if name not in declared:
            services[name] = _read_service_of_flag(name, declared, environment)
    for name, service in services.items():
        if not service.command:
            raise UserError(f"The service {name} has no command to start.", where=f"ajet.services.{name}.command")
    return services


def _read_service_of_flag(name: str, declared: Mapping[str, Companion], environment: Mapping[str, str]) -> Companion:
    """Return the service of `--with-NAME` from the variables NAME_PATH and NAME_SCRIPT.

    Raises:
        UserError: one of the two is not set.
    """
    path, script = (environment.get(f"{name.upper()}_{suffix}") for suffix in ("PATH", "SCRIPT"))
    if path and script:
        command = ["/bin/bash", "-c", script]
        return Companion(command=command, cwd=path, ready=AGENTJETS_READY, timeout=AGENTJETS_TIMEOUT_S)
    raise UserError(
        f"There is no service {name} for the option --with-{name}.",
        where="command line",
        expected=f"a service of ajet.services in the YAML ({', '.join(declared) or 'it has none'}), or the variables "
        f"{name.upper()}_PATH and {name.upper()}_SCRIPT: a folder, and a command to run in it",
        do=f"write services: {{{name}: {{command: …, ready: http://127.0.0.1:PORT/healthz}}}} below ajet:",
    )
