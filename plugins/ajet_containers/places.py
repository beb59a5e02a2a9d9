"""Opens a task's container with the engine of the section `container`.

Invariant: a container that was started is closed, also if the episode is cancelled during the start.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ajet.schema.errors import SandboxFailure, UserError
from ajet_containers.bubblewrap import BubblewrapContainer, list_held
from ajet_containers.container import EngineContainer, open_engine, require_limits
from ajet_containers.images import build_image, require_image
from ajet_containers.living import LivingContainer
from ajet_containers.settings import ContainerLimits
from ajet_sandbox.bubblewrap import find_bubblewrap


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What a task's container is made of."""

    engine: str
    """podman, docker or bubblewrap."""
    limits: ContainerLimits
    image: str | None = None
    folder: Path | None = None
    """A folder with a Dockerfile, used without `image`."""
    root: Path | None = None
    """For bubblewrap: the unpacked image."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Paths of the host, with their read-only paths inside."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    build_network: bool = False
    build_timeout: float = 600.0


def choose_engine(name: str) -> str:
    """Return the engine for `container.engine`: the first one installed for `auto`. Raises SandboxFailure."""
    if name != "auto":
        return name
    for engine in ("podman", "docker"):
        if shutil.which(engine):
            return engine
    if find_bubblewrap() is not None:
        return "bubblewrap"
    raise SandboxFailure("neither podman nor docker nor bubblewrap is installed", retryable=False)


def check_engine(name: str, limits: ContainerLimits) -> None:
    """Raise SandboxFailure for an engine that does not answer, ConfigError for a limit that it cannot hold."""
    require_limits(name, list_held() if name == "bubblewrap" else open_engine(name).held, limits)


@asynccontextmanager
async def open_container(spec: ContainerSpec) -> AsyncIterator[LivingContainer]:
    """Start a container for the block and remove it afterwards. Raises SandboxFailure."""
    loop = asyncio.get_running_loop()
    starting = loop.run_in_executor(None, start_container, spec)  # no task: the end of the loop would cancel it
    try:
        container = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])
        with suppress(SandboxFailure):
            await asyncio.shield(loop.run_in_executor(None, starting.result().close))
        raise
    try:
        yield container
    finally:
        await asyncio.shield(loop.run_in_executor(None, container.close))


def start_container(spec: ContainerSpec) -> LivingContainer:
    """Build or find the image and start its container. Raises SandboxFailure."""
    try:
        if spec.engine == "bubblewrap":
            return BubblewrapContainer(spec.root, spec.limits, spec.mounts, spec.environment)
        engine = open_engine(spec.engine)
        if spec.image is not None:
            image = require_image(engine, spec.image)
        elif spec.folder is not None:
            image = build_image(engine, spec.folder, network=spec.build_network, timeout=spec.build_timeout)
        else:
            raise SandboxFailure("the task names neither an image nor a build folder", retryable=False)
        return EngineContainer(engine, image, spec.limits, spec.mounts, spec.environment)
    except UserError as error:
        raise SandboxFailure(f"{error.what} {error.do}".strip(), retryable=False) from error
