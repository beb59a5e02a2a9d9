"""Tool servers given as container images: one container per server process, connected by pipes.

Invariants: the server's variables reach the container and no other process (`ajet_sandbox.engine`). The container has
no capabilities, no network unless the file names one, and the CPU cores and memory of `resources`. It ends when its
pipes close, and is removed with its session. After a killed run it ends by itself, or the next run removes it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ajet.schema.errors import ConfigError, SandboxFailure
from ajet_mcp.servers import Server
from ajet_sandbox.engine import ENGINE_VARIABLES, LABEL, find_engine, make_owner_label, pass_variables


@dataclass(frozen=True, slots=True)
class Contained:
    """The command that starts a container, and what is needed to remove the container."""

    command: tuple[str, ...]
    program: str
    name: str
    """Name of the container, passed to the engine."""
    environment: dict[str, str]
    """Environment of the container engine's command."""
    descriptor: int
    """Descriptor inherited by the command; the starting process closes it."""


def contained(server: Server) -> Contained:
    """Build the command of a new container.

    Raises:
        SandboxFailure: no engine has the image.
    """
    program, name = find_engine(server.image), f"ajet-server-{secrets.token_hex(8)}"
    engine_variables = {key: value for key, value in os.environ.items() if ENGINE_VARIABLES.match(key)}
    options = [
        program, "run", "--rm", "--interactive", "--pull", "never", "--name", name,
        "--label", f"{LABEL}={make_owner_label()}",
        "--log-driver", "none", "--network", server.network, "--stop-signal", "KILL",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges", *_build_limits(server),
    ]  # fmt: skip
    variables = pass_variables(server.env)
    command = (*options, *variables.words, server.image, *server.command)
    return Contained(command, program, name, {**engine_variables, **variables.environment}, variables.descriptor)


def require_images(servers: Sequence[Server]) -> None:
    """Check that all images are present.

    Raises:
        ConfigError: an image is missing on this machine.
    """
    for server in servers:
        if not server.image:
            continue
        try:
            find_engine(server.image)
        except SandboxFailure as problem:
            raise ConfigError(
                f"The server {server.name} cannot start its image: {problem}",
                where=f"mcpServers.{server.name}.image",
                expected="an image that podman or docker has on this machine; ajet downloads no images",
            ) from None


def _build_limits(server: Server) -> list[str]:
    """Return the container engine's options for CPU cores and memory of the server."""
    options: list[str] = []
    if server.resources.cores:
        options += ["--cpus", f"{server.resources.cores:g}"]
    if server.resources.memory:
        options += ["--memory", f"{server.resources.memory}m", "--memory-swap", f"{server.resources.memory}m"]
    return options
