"""Servers of a file that are an image: a container for each process, spoken to over its pipes.

Invariants: what it is given of variables reaches the container and nothing else (`ajet_sandbox.engine`); it has no
network unless one is named, no capability, and the cores and memory of its `resources`. It ends with its pipes, and is
removed with its session; one whose run was killed ends by itself or is removed by the next run.
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
    """The command that starts a container, and the one that removes it."""

    command: tuple[str, ...]
    program: str
    name: str
    """Of the container."""
    environment: dict[str, str]
    """Of the engine's command."""
    descriptor: int
    """Which that inherits; closed by whoever starts it."""


def contained(server: Server) -> Contained:
    """A new container's. Raises SandboxFailure."""
    program, name = find_engine(server.image), f"ajet-server-{secrets.token_hex(8)}"
    ours = {key: value for key, value in os.environ.items() if ENGINE_VARIABLES.match(key)}
    words = [
        program, "run", "--rm", "--interactive", "--pull", "never", "--name", name,
        "--label", f"{LABEL}={make_owner_label()}",
        "--log-driver", "none", "--network", server.network, "--stop-signal", "KILL",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges", *_build_limits(server),
    ]  # fmt: skip
    variables = pass_variables(server.env)
    command = (*words, *variables.words, server.image, *server.command)
    return Contained(command, program, name, {**ours, **variables.environment}, variables.descriptor)


def require_images(servers: Sequence[Server]) -> None:
    """Raises ConfigError where an image is not on this machine."""
    for server in servers:
        if not server.image:
            continue
        try:
            find_engine(server.image)
        except SandboxFailure as problem:
            raise ConfigError(
                f"The server {server.name} is an image that cannot be started: {problem}",
                where=f"mcpServers.{server.name}.image",
                expected="an image that podman or docker has here; nothing is pulled",
            ) from None


def _build_limits(server: Server) -> list[str]:
    """The engine's words for what it may use."""
    words: list[str] = []
    if server.resources.cores:
        words += ["--cpus", f"{server.resources.cores:g}"]
    if server.resources.memory:
        words += ["--memory", f"{server.resources.memory}m", "--memory-swap", f"{server.resources.memory}m"]
    return words
