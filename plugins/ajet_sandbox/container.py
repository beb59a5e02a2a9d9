"""Sandboxes in containers of podman or docker.

A container has no network, a read-only root from an image, temporary folders of fixed size, no capability, an unused
user id, and a control group for memory and processes. Invariants: the resident (the Python process that forks for each
call) is process 1 of its container and reads from standard input, so it ends with the host process. The engine then
removes the container (`--rm`). The next run removes those that remain (`engine.py`).
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import NO_VARIABLES, Limits
from ajet_sandbox.engine import LABEL, make_owner_label, remove_container, remove_dead_containers
from ajet_sandbox.identity import choose_container_uid
from ajet_sandbox.seccomp import seccomp_filter
from ajet_sandbox.warm import ResidentPlan, WarmSandbox

IMAGE = "docker.io/library/python:3.12-slim"
"""The default image of containers, used without `environment.sandbox_image`."""
FOLDER = "/box"
_OF_PODMAN = ("--read-only-tmpfs=false", "--http-proxy=false")
_AS_NEW = {"podman": ",notmpcopyup"}
"""Without it, a folder of the image at the same place would set mode and files."""


class ContainerSandbox(WarmSandbox):
    """A sandbox in a container of podman or docker."""

    is_disk_bounded = True
    end_timeout_s = 5.0

    def __init__(
        self, engine: str, limits: Limits, environment: Mapping[str, str] = NO_VARIABLES, *, image: str | None = None
    ) -> None:
        """Start a container. Raises SandboxFailure if the engine fails.

        Args:
            engine: "podman" or "docker".
            image: image with a `python3`, 3.10 or later, on its PATH; None for the default image.
        """
        self.mechanism = engine
        self._image = image or IMAGE
        self._name = ""
        super().__init__(limits, environment, cgroups=False)

    def _plan_start(self, line: int) -> ResidentPlan:
        """Return the engine's command line and the resident process's settings, and remove containers of ended runs.

        Args:
            line: unused, because an engine passes no descriptor into a container: standard input and output are the
                line.

        Raises:
            SandboxFailure: the engine is not installed or fails.
        """
        program = shutil.which(self.mechanism)
        if program is None:
            raise SandboxFailure(f"{self.mechanism} is not installed", retryable=False)
        remove_dead_containers(program)
        self._name, self.folder = f"ajet-sandbox-{secrets.token_hex(8)}", FOLDER
        self._program, self._removed = program, False
        limits, uid = self._limits, choose_container_uid()
        tmpfs = f"rw,exec,nosuid,nodev,size={limits.disk}" + _AS_NEW.get(self.mechanism, "")
        max_files = min(max(1024, limits.files), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        argv = [
            program, "run", "--rm", "--interactive", "--pull", "never", "--name", self._name,
            "--label", f"{LABEL}={make_owner_label()}", "--log-driver", "none",
            "--network", "none", "--hostname", "box", "--read-only", "--cap-drop", "ALL",
            "--stop-signal", "KILL", "--security-opt", "no-new-privileges", "--user", f"{uid}:{uid}",
            "--memory", str(limits.memory), "--memory-swap", str(limits.memory),
            "--pids-limit", str(limits.processes + 2),
            "--ulimit", f"nproc={limits.processes + 2}", "--ulimit", f"nofile={max_files}", "--ulimit", "core=0",
            "--shm-size", str(limits.disk),
            "--tmpfs", f"{FOLDER}:{tmpfs},mode=0777", "--tmpfs", f"/tmp:{tmpfs},mode=1777",
            "--workdir", FOLDER, "--entrypoint", "python3", *(_OF_PODMAN if self.mechanism == "podman" else ()),
            self._image,
        ]  # fmt: skip
        settings: dict[str, Any] = {
            "line": None, "uid": None, "folder": FOLDER, "landlock": None, "filter": seccomp_filter(namespaces=True),
            "longest": 1 << 30, "packages": [], "memory": limits.memory,
            "environment": {"HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "box"} | self._environment,
        }  # fmt: skip
        return ResidentPlan(
            argv, settings, is_compiled=False, is_piped=True, has_site_packages=True, variables=dict(os.environ)
        )

    def _end_processes(self) -> None:
        """End the resident process, and remove a container that did not end with it.

        A clean end lets the engine remove it.
        """
        super()._end_processes()
        process = getattr(self, "_process", None)
        if process is not None and process.returncode != 0 and not self._removed:
            self._removed = True
            with suppress(SandboxFailure):  # the next run removes a remaining container
                remove_container(self._program, self._name)
