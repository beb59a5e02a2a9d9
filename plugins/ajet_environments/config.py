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

    command: str | list[str] = key("", "Program and arguments; no shell reads them.", training=False, min_length=1)
    cwd: str | None = key(None, "Its working folder; null is the YAML's.", training=False)
    env: dict[str, str] = key({}, "Variables beside those of the run.", training=False)
    ready: str | None = key(
        None,
        "When it is ready: an address that answers (http://…, tcp://HOST:PORT), or a text that it prints; null: at "
        "once.",
        training=False,
    )
    timeout: float = key(60.0, "Seconds that it may take to be ready.", training=False, gt=0)
    restarts: int = key(
        3,
        "Times in a row that it is started again where it ended with an error or was killed; one that was ready for a "
        "minute counts anew. 0: never.",
        training=False,
        ge=0,
    )
    confined: bool = key(
        False,
        "Run it in a sandbox (bubblewrap): no network but its one port, that of `ready`; no file of this machine but "
        "programs, its folder and `shows`, read-only; no variable but `env`. Refused where there is none.",
        training=False,
    )
    shows: list[str] = key([], "Folders that one that is confined reads, too.", training=False)
    only_with_flag: bool = key(False, "Start it only where `--with-NAME` is given.", training=False)


class ServiceKeys(PluginKeys):
    """The key `services` of the configuration."""

    services: dict[str, Companion] = key(
        {},
        "Programs that a run needs beside it, by name: each is started before it and ended after it. "
        "`{command, cwd, env, ready, timeout, restarts, confined, shows, only_with_flag}`, see docs/environments.md.",
        training=False,
    )


def choose_services(
    experiment: Experiment, flags: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Companion]:
    """Return the services to start, by name: those of the YAML and those selected by `--with-NAME`.

    A name missing in the YAML is one of AgentJet's services, described by NAME_PATH and NAME_SCRIPT of the environment.
    Raises UserError.
    """
    declared = ServiceKeys.of(experiment.ajet).services
    found = {name: each for name, each in declared.items() if not each.only_with_flag or name in flags}
    for name in flags:
        if name not in declared:
            found[name] = _read_service_of_flag(name, declared, environment)
    for name, each in found.items():
        if not each.command:
            raise UserError(f"The service {name} has no command.", where=f"ajet.services.{name}.command")
    return found


def _read_service_of_flag(name: str, declared: Mapping[str, Companion], environment: Mapping[str, str]) -> Companion:
    path, script = (environment.get(f"{name.upper()}_{each}") for each in ("PATH", "SCRIPT"))
    if path and script:
        command = ["/bin/bash", "-c", script]
        return Companion(command=command, cwd=path, ready=AGENTJETS_READY, timeout=AGENTJETS_TIMEOUT_S)
    raise UserError(
        f"--with-{name} names no service.",
        where="command line",
        expected=f"one of ajet.services in the YAML ({', '.join(declared) or 'it has none'}), or the variables "
        f"{name.upper()}_PATH and {name.upper()}_SCRIPT: a folder, and a command that is run in it",
        do=f"write services: {{{name}: {{command: …, ready: http://127.0.0.1:PORT/healthz}}}} below ajet:",
    )
