"""Keys of sandboxes, in the section `environment`."""

from __future__ import annotations

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.extended import PluginKeys


class SandboxLimits(Section):
    """Limits of a call in a sandbox. A call beyond a limit is ended with the reason."""

    wall: float = key(30.0, "Seconds of elapsed time.", gt=0)
    cpu: int = key(30, "CPU seconds of each process.", ge=1)
    memory: int = key(512, "MiB of all processes together, and of the address space of each.", ge=64)
    processes: int = key(64, "Number of processes and threads at the same time.", ge=4)
    files: int = key(256, "Number of open files of each process.", ge=16)
    disk: int = key(256, "MiB in the working folder, and as many in /tmp.", ge=1)
    output: int = key(1 << 20, "Bytes of standard output and error together.", ge=1024)


class SandboxKeys(PluginKeys):
    """Options of the mechanism named by `environment.sandbox`."""

    sandbox_limits: SandboxLimits = section(
        SandboxLimits,
        "Limits of one call in a sandbox. With `rollout.isolation: sandbox`, `memory`, `processes`, `files` and "
        "`disk` limit a complete attempt.",
    )
    sandbox_python: str | None = key(
        None,
        "A Python whose packages code in a sandbox can import, such as `tools/.venv/bin/python`; null: ajet's "
        "own Python with the standard library only.",
        kind="path",
    )
    sandbox_root: str | None = key(
        None,
        "A folder that code in a sandbox sees as / (an unpacked image, with Python 3.10 or later at "
        "/usr/bin/python3); null: this machine's programs, read-only. Needs bubblewrap.",
        kind="path",
    )
    sandbox_image: str | None = key(
        None,
        "Image for containers, with a `python3` of 3.10 or later; ajet downloads none; null: "
        "docker.io/library/python:3.12-slim. Needs podman or docker.",
    )
