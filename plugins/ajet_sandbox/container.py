"""Sandboxes by a container engine, podman or docker, over its command: no network, a read-only root from an image,
sized temporary folders, no capability, a user that nobody is, memory and processes held by a control group.

Invariants: the resident is process 1 of its container and hears on standard input, so that a host that is gone ends it;
its engine then removes it (`--rm`). What an engine could not remove the next run removes: `engine.py`.
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
from ajet_sandbox.engine import LABEL, owner, remove, swept
from ajet_sandbox.identity import uid_of_a_container
from ajet_sandbox.seccomp import seccomp_filter
from ajet_sandbox.warm import Plan, Warm

IMAGE = "docker.io/library/python:3.12-slim"
"""Where none is named."""
FOLDER = "/box"
_OF_PODMAN = ("--read-only-tmpfs=false", "--http-proxy=false")
_AS_NEW = {"podman": ",notmpcopyup"}
"""A folder of the image in this place would give its mode and its files."""


class Container(Warm):
    """See the module."""

    holds_disk = True
    ends_within = 5.0

    def __init__(
        self, engine: str, limits: Limits, environment: Mapping[str, str] = NO_VARIABLES, *, image: str | None = None
    ) -> None:
        """`image`: has a `python3`, 3.10 or later, on its PATH. Raises SandboxFailure."""
        self.mechanism = engine
        self._image = image or IMAGE
        self._name = ""
        super().__init__(limits, environment, cgroups=False)

    def _plan(self, line: int) -> Plan:
        program = shutil.which(self.mechanism)
        if program is None:
            raise SandboxFailure(f"{self.mechanism} is not installed", retryable=False)
        swept(program)
        self._name, self.folder = f"ajet-sandbox-{secrets.token_hex(8)}", FOLDER
        self._program, self._removed = program, False
        most, user = self._limits, uid_of_a_container()
        tmpfs = f"rw,exec,nosuid,nodev,size={most.disk}" + _AS_NEW.get(self.mechanism, "")
        files = min(max(1024, most.files), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        argv = [
            program, "run", "--rm", "--interactive", "--pull", "never", "--name", self._name,
            "--label", f"{LABEL}={owner()}", "--log-driver", "none",
            "--network", "none", "--hostname", "box", "--read-only", "--cap-drop", "ALL",
            "--stop-signal", "KILL", "--security-opt", "no-new-privileges", "--user", f"{user}:{user}",
            "--memory", str(most.memory), "--memory-swap", str(most.memory), "--pids-limit", str(most.processes + 2),
            "--ulimit", f"nproc={most.processes + 2}", "--ulimit", f"nofile={files}", "--ulimit", "core=0",
            "--shm-size", str(most.disk),
            "--tmpfs", f"{FOLDER}:{tmpfs},mode=0777", "--tmpfs", f"/tmp:{tmpfs},mode=1777",
            "--workdir", FOLDER, "--entrypoint", "python3", *(_OF_PODMAN if self.mechanism == "podman" else ()),
            self._image,
        ]  # fmt: skip
        settings: dict[str, Any] = {
            "line": None, "uid": None, "folder": FOLDER, "landlock": None, "filter": seccomp_filter(namespaces=True),
            "longest": 1 << 30, "packages": [], "memory": most.memory,
            "environment": {"HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "box"} | self._environment,
        }  # fmt: skip
        return Plan(argv, settings, compiled=False, piped=True, site=True, variables=dict(os.environ))

    def _end(self) -> None:
        super()._end()
        process = getattr(self, "_process", None)
        if process is not None and process.returncode != 0 and not self._removed:
            self._removed = True
            with suppress(SandboxFailure):  # what could not be removed is removed by the next run
                remove(self._program, self._name)
