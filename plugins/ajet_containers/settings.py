"""The YAML section `container`: the engine, the limits and the mounts of a task's container.

Invariant: a task may set its own limits; a limit that the engine cannot hold on this machine is refused by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ajet.schema.errors import ConfigError
from ajet_command.settings import get_base_folder, read_section

SECTION = "container"


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Limits of all processes of one container together. None means no limit."""

    memory_mb: int | None = None
    cpus: float | None = None
    processes: int | None = None
    disk_mb: int | None = None
    """Bytes that may be written to the root."""

    def list_set(self) -> list[str]:
        """Return the names of the limits that are set."""
        return [name for name in self.__slots__ if getattr(self, name) is not None]


class ContainerSettings(BaseModel):
    """The container of each episode."""

    model_config = ConfigDict(extra="forbid")

    engine: Literal["auto", "podman", "docker", "bubblewrap"] = "auto"
    mounts: list[str] = Field(default_factory=list)
    """Read-only files and folders of the agent: `HOST` or `HOST:INSIDE`; HOST relative to the YAML's folder."""
    build_network: bool = False
    """Give the commands of a Dockerfile the network. Base images are never pulled."""
    memory_mb: int | None = Field(default=4096, gt=0)
    """The limits of tasks that set none."""
    cpus: float | None = Field(default=None, gt=0)
    processes: int | None = Field(default=512, ge=2)
    disk_mb: int | None = Field(default=None, gt=0)
    roots: str | None = None
    """For bubblewrap: a folder of unpacked images, by name with `_` for `/` and `:`."""

    @classmethod
    def read(cls, config: Any) -> ContainerSettings:
        """Return the settings, with defaults for a missing section. Raises ConfigError."""
        if config.get(SECTION) is None:
            return cls()
        return read_section(cls, config, SECTION, "the tasks' containers", "{engine: podman}", "docs/harbor.md")

    def choose_limits(self, memory_mb: int | None, cpus: float | None, disk_mb: int | None) -> ContainerLimits:
        """Return the limits of a task, with those of the section for limits that it does not set."""
        return ContainerLimits(
            memory_mb=memory_mb or self.memory_mb,
            cpus=cpus or self.cpus,
            processes=self.processes,
            disk_mb=disk_mb or self.disk_mb,
        )

    def find_root(self, image: str | None, config: Any) -> Path | None:
        """Return the folder of an unpacked image, or None without one."""
        if image is None or self.roots is None:
            return None
        return (get_base_folder(config) / Path(self.roots).expanduser() / re.sub("[/:]", "_", image)).absolute()

    def find_mounts(self, config: Any) -> dict[str, str]:
        """Map existing paths of the host to their paths inside. Raises ConfigError."""
        base, mounts = get_base_folder(config), {}
        for mount in self.mounts:
            host, _, path_inside = mount.partition(":")
            path = (base / Path(host).expanduser()).absolute()
            if not path.exists() or not (path_inside or str(path)).startswith("/"):
                raise ConfigError(
                    f"The mount {mount} cannot be made.",
                    where=f"{SECTION}.mounts",
                    expected="an existing path, relative to the YAML's folder, and optionally an absolute path inside",
                    do=f"{path} does not exist" if not path.exists() else "begin the path inside with /",
                )
            mounts[str(path)] = path_inside or str(path)
        return mounts
