"""Finds the environment services that a run needs, for the list of required services before the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ajet.config.services import RequiredService
from ajet.environment.services.chosen import KEY, SERVICE_KEY, env_service_of
from ajet.schema.commands import format_command

if TYPE_CHECKING:
    from ajet.config import Experiment

WIRES = {"openenv": "OpenEnv", "nemo_gym": "NeMo Gym"}
"""Ecosystems reached at an address, and their names."""


def advise_start() -> str:
    """Return a sentence on how to start a missing environment service."""
    serve = format_command("env", "serve", "FILE.py->MyEnv", "--port", "N")
    return f"start it before the run (by `{serve}`, or as one of `ajet.services` in the YAML)"


def list_services(experiment: Experiment) -> Iterator[RequiredService]:
    """Yield the environment services that the experiment uses, so that they can be checked before the start."""
    service, environment = env_service_of(experiment), experiment.ajet.environment.use or ""
    do = advise_start()
    if service is not None:
        key = KEY if environment else SERVICE_KEY
        expected = "an environment service"
        yield RequiredService("environment service", service.url, key, service.health, expected, do)
    kind, _, address = environment.partition(":")
    if kind in WIRES:
        from ajet_environments.services.openenv import find_health_problem

        yield RequiredService(
            f"{WIRES[kind]} server",
            address,
            KEY,
            lambda seconds: find_health_problem(address, seconds),
            f"a server of {WIRES[kind]}'s protocol",
            "start it before the run (by hand, or as one of `ajet.services` in the YAML)",
        )
