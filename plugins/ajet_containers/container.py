"""A task's container in podman or docker: any image with `sh` and `sleep`, a writable root, no network.

Invariants: nothing is pulled. The container carries the label of this process (`ajet_sandbox.engine`), so the next run
removes it if this process is killed. Variables never stand in an argument list.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ajet.record.held_folder import HeldFolder
from ajet.rollout.isolation.worker_process import lower_priority
from ajet.schema.errors import ConfigError, SandboxFailure
from ajet_containers.living import Change, LivingContainer
from ajet_containers.settings import SECTION, ContainerLimits
from ajet_sandbox.engine import (
    LABEL,
    fits_env_file,
    make_owner_label,
    pass_variables,
    remove_container,
    remove_dead_containers,
    run_engine,
)

START_TIMEOUT_S = 120.0
CAPABILITIES = "CHOWN,DAC_OVERRIDE,FOWNER,FSETID,SETUID,SETGID,KILL,NET_BIND_SERVICE"
WAIT = "while :; do sleep 3600 & wait $!; done"
"""The first process: it reaps orphans, and no signal from inside ends it."""
OPEN_FILES = 65_536
NAMES = "ajet-task-"
"""Prefix of the containers' names, and of their folders on the host."""
_starting = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Engine commands at once: more would take the processors from the gateway without starting anything sooner."""


class ContainerEngine:
    """The command of podman or docker on this machine, and the limits that it can hold here."""

    def __init__(self, name: str, program: str) -> None:
        """Read from the engine's `info` which limits it can hold. Raises SandboxFailure if it does not answer."""
        self.name, self.program = name, program
        result = run_engine(program, "info", "--format", "{{json .}}")
        try:
            info = json.loads(result.stdout)
        except ValueError:
            last_line = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise SandboxFailure(f"{name} does not answer: {''.join(last_line)}", retryable=False) from None
        self.held = _list_held_by_podman(info) if name == "podman" else _list_held_by_docker(info)

    def require_limits(self, limits: ContainerLimits) -> None:
        """Raise ConfigError if a set limit cannot be held on this machine."""
        require_limits(self.name, self.held, limits)


def require_limits(engine: str, held: frozenset[str], limits: ContainerLimits) -> None:
    """Raise ConfigError for the first set limit that is not in `held`."""
    for name in limits.list_set():
        if name not in held:
            raise ConfigError(
                f"{engine} cannot hold the limit {name} on this machine.",
                where=f"{SECTION}.{name}, or the task's own limit",
                expected=f"only limits that it can hold: {', '.join(sorted(held)) or 'none'}",
                do=f"set {SECTION}.{name}: null"
                + (" (a disk limit needs a store on xfs with project quotas)" if name == "disk_mb" else ""),
            )


def _list_held_by_podman(info: dict[str, Any]) -> frozenset[str]:
    """Return the names of the limits that podman can hold here, from `podman info`. disk_mb needs overlay on xfs."""
    host, store = info["host"], info["store"]
    held = set()
    if not (host["security"]["rootless"] and host["cgroupVersion"] == "v1"):  # podman ignores them without an error
        controllers = {"memory": "memory_mb", "cpu": "cpus", "pids": "processes"}
        held |= {limit for controller, limit in controllers.items() if controller in host["cgroupControllers"]}
    if store["graphDriverName"] == "overlay" and store["graphStatus"].get("Backing Filesystem") == "xfs":
        held.add("disk_mb")
    return frozenset(held)


def _list_held_by_docker(info: dict[str, Any]) -> frozenset[str]:
    """Return the names of the limits that docker can hold here, from `docker info`. disk_mb needs overlay2 on xfs."""
    flags = {"MemoryLimit": "memory_mb", "CpuCfsQuota": "cpus", "PidsLimit": "processes"}
    held = {limit for flag, limit in flags.items() if info.get(flag)}
    if info.get("Driver") == "overlay2" and ["Backing Filesystem", "xfs"] in info.get("DriverStatus", []):
        held.add("disk_mb")
    return frozenset(held)


@lru_cache(maxsize=4)
def open_engine(name: str) -> ContainerEngine:
    """Return the engine by name, after removing containers of ended processes. Raises SandboxFailure."""
    program = shutil.which(name)
    if program is None:
        raise SandboxFailure(f"{name} is not installed", retryable=False)
    engine = ContainerEngine(name, program)
    remove_dead_containers(program)
    return engine


class EngineContainer(LivingContainer):
    """A container of podman or docker."""

    has_changes = True

    def __init__(
        self,
        engine: ContainerEngine,
        image: str,
        limits: ContainerLimits,
        mounts: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        """Start the container. Raises SandboxFailure, or ConfigError for a limit that cannot be held."""
        engine.require_limits(limits)
        self._engine, self._name = engine, f"{NAMES}{secrets.token_hex(8)}"
        self._held_folder, self._closed = HeldFolder(NAMES), False
        self.folder, self._files = self._held_folder.path, 0
        try:
            super().__init__(self._start_engine(image, limits, mounts, environment), self.folder)
            lower_priority(self.pid)
        except BaseException:
            self.close()
            raise

    def _start_engine(
        self, image: str, limits: ContainerLimits, mounts: Mapping[str, str], environment: Mapping[str, str]
    ) -> int:
        """Start the container and return the host's id of its first process.

        Raises:
            SandboxFailure: the engine failed, or reached START_TIMEOUT_S.
        """
        is_podman = self._engine.name == "podman"
        variables = pass_variables(environment)
        argv = [
            self._engine.program, "run", "--detach", "--pull", "never", "--network", "none", "--name", self._name,
            "--label", f"{LABEL}={make_owner_label()}", "--log-driver", "none", "--hostname", "task",
            "--stop-signal", "KILL", "--security-opt", "no-new-privileges", "--cap-drop", "ALL",
            "--cap-add", CAPABILITIES, *build_limit_args(limits), *variables.words,
        ]  # fmt: skip
        if is_podman:
            argv += ["--http-proxy=false", "--pidfile", str(self.folder / "pid")]
        for host, path_inside in mounts.items():
            argv += ["--volume", f"{host}:{path_inside}:ro"]
        argv += ["--entrypoint", "sh", image, "-c", WAIT]
        try:
            with _starting:
                result = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=START_TIMEOUT_S,
                    pass_fds=(variables.descriptor,),
                    env={**os.environ, **variables.environment},
                    cwd=self.folder,  # podman's monitor writes a file `oom` into it
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxFailure(f"{self._engine.name} run: {error}") from error
        finally:
            os.close(variables.descriptor)
        if result.returncode:
            raise SandboxFailure(f"no container of the image {image} starts: {_read_error(result)}")
        if is_podman:
            return int((self.folder / "pid").read_text())
        return int(run_engine(self._engine.program, "inspect", "--format", "{{.State.Pid}}", self._name).stdout)

    def build_command(
        self, argv: Sequence[str], environment: Mapping[str, str], user: str | None, workdir: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the engine's `exec`. Variables are in a file that only this user can read."""
        self._files += 1
        file = self.folder / f"variables-{self._files}"
        file.touch(mode=0o600)
        # Values that an env file cannot hold are passed by name, from the environment of the engine's command.
        single_line = {name: value for name, value in environment.items() if fits_env_file(value)}
        file.write_text("".join(f"{name}={value}\n" for name, value in single_line.items()))
        command = [self._engine.program, "exec", "--interactive", "--env-file", str(file)]
        multiline = {name: value for name, value in environment.items() if name not in single_line}
        for name in multiline:
            command += ["--env", name]
        command += ["--workdir", workdir] if workdir else []
        command += ["--user", user] if user else []
        return [*command, self._name, *argv], {**os.environ, **multiline}

    def read_variable(self, name: str) -> str:
        """Return a variable of the container's first process, which has the image's variables; "" without it."""
        try:
            entries = Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError as error:
            raise SandboxFailure(f"the container's variables cannot be read: {error}") from error
        return next((value for key, _, value in (entry.partition("=") for entry in entries) if key == name), "")

    def list_changes(self) -> list[Change]:
        """Return the changes of the root, from the engine's `diff`."""
        result = run_engine(self._engine.program, "diff", self._name)
        if result.returncode:
            raise SandboxFailure(f"{self._engine.name} diff: {_read_error(result)}")
        rows = result.stdout.decode(errors="replace").splitlines()
        return [(kind, path) for kind, _, path in (row.partition(" ") for row in rows) if path]

    def close(self) -> None:
        """Remove the container; the next run removes it if the engine fails now."""
        if not self._closed:
            self._closed = True
            with suppress(SandboxFailure), _starting:
                remove_container(self._engine.program, self._name)
            self._held_folder.remove()


def build_limit_args(limits: ContainerLimits) -> list[str]:
    """Return the engine's arguments for the limits, and for limits that the started process could not set itself."""
    files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    argv = ["--ulimit", f"nofile={files}:{files}", "--ulimit", "core=0"]
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    highest_pid = int(Path("/proc/sys/kernel/pid_max").read_text())  # podman lowers its own to it
    processes = highest_pid if hard == resource.RLIM_INFINITY else min(highest_pid, hard)
    argv += ["--ulimit", f"nproc={processes}:{processes}"]
    if limits.memory_mb:
        argv += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
    if limits.cpus:
        argv += ["--cpus", str(limits.cpus)]
    if limits.processes:
        argv += ["--pids-limit", str(limits.processes)]
    if limits.disk_mb:
        argv += ["--storage-opt", f"size={limits.disk_mb}M"]
    return argv


def _read_error(result: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line of an engine command's errors, or its exit code."""
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {result.returncode}"
