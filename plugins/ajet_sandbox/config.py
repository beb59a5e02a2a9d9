"""Keys of sandboxes, in the section `environment`."""

from __future__ import annotations

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.extended import PluginKeys


class SandboxLimits(Section):
    """Limits of a call in a sandbox. A call beyond a limit is ended with the reason."""

    wall: float = key(30.0, "Seconds by the clock.", gt=0)
    cpu: int = key(30, "Processor seconds of each process.", ge=1)
    memory: int = key(512, "MiB of all its processes together, and of each one's addresses.", ge=64)
    processes: int = key(64, "Processes and threads at once.", ge=4)
    files: int = key(256, "Open files of each process.", ge=16)
    disk: int = key(256, "MiB in its working folder, and as many in /tmp.", ge=1)
    output: int = key(1 << 20, "Bytes of standard output and error together.", ge=1024)


class SandboxKeys(PluginKeys):
    """Options of the mechanism named by `environment.sandbox`."""

    sandbox_limits: SandboxLimits = section(
        SandboxLimits,
        "What one call in a sandbox may use. `rollout.isolation: sandbox` holds a whole attempt to its `memory`, "
        "`processes`, `files` and `disk`.",
    )
    sandbox_python: str | None = key(
        None,
        "A Python whose packages code in a sandbox can import, `tools/.venv/bin/python` for one; null: ajet's own "
        "Python with its standard library alone.",
        kind="path",
    )
    sandbox_root: str | None = key(
        None,
        "A folder that code in a sandbox sees as / (an unpacked image, with a Python 3.10 or later at "
        "/usr/bin/python3); null: this machine's programs, read-only. Needs bubblewrap.",
        kind="path",
    )
    sandbox_image: str | None = key(
        None,
        "The image of an engine's containers, with a `python3`, 3.10 or later; nothing is pulled; null: "
        "docker.io/library/python:3.12-slim. Needs podman or docker.",
    )
