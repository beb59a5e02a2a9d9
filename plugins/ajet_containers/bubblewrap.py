"""A task's container by bubblewrap, where there is no engine: an unpacked image under a writable layer in memory.

Invariants: root inside is this process's user in a user namespace without capabilities. The first process reads from a
pipe of this process, so the container ends with it. Commands that enter later give up the same rights (`enter.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ajet.record.held_folder import HeldFolder
from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import Limits
from ajet_containers import enter
from ajet_containers.living import Change, LivingContainer
from ajet_containers.settings import ContainerLimits
from ajet_sandbox.bubblewrap import find_bubblewrap, make_memfd, read_child_pid
from ajet_sandbox.cgroup import ControlGroup, make_control_group
from ajet_sandbox.seccomp import seccomp_filter

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNLIMITED = 1 << 40
CLOSED = ("sys", "sysrq-trigger", "fs", "irq", "bus", "acpi", "scsi", "tty", "driver", "kcore", "keys", "timer_list",
          "pressure")  # fmt: skip
"""Of /proc, shown read-only: root of the machine may write there without any capability."""


def list_held() -> frozenset[str]:
    """Return the limits that bubblewrap can hold here: those of a writable control group."""
    group = make_control_group(Limits())
    if group is None:
        return frozenset()
    group.remove()
    return frozenset({"memory_mb", "processes"})


class BubblewrapContainer(LivingContainer):
    """A container of an unpacked image."""

    has_changes = False

    def __init__(
        self, root: Path | None, limits: ContainerLimits, mounts: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        """Start the container. Raises SandboxFailure."""
        program = find_bubblewrap()
        if program is None or root is None or not root.is_dir():
            problem = "bubblewrap is not installed" if program is None else f"there is no unpacked image {root or ''}"
            raise SandboxFailure(f"{problem} (`container.roots`; a Dockerfile needs podman)", retryable=False)
        if not_held := set(limits.list_set()) - list_held():
            raise SandboxFailure(f"bubblewrap cannot hold the limit {min(not_held)}", retryable=False)
        self._group = _make_group(limits)
        self._held_folder = HeldFolder("ajet-root-")
        self._environment = {"PATH": PATH, "HOME": "/root", **environment}
        self.folder, self._files = self._held_folder.path, 0
        self._filter = seccomp_filter(namespaces=True)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            super().__init__(self._start_program(program, root, mounts), self.folder)
        except BaseException:
            self.close()
            raise

    def _start_program(self, program: str, root: Path, mounts: Mapping[str, str]) -> int:
        """Start bubblewrap with the image's root, and return the host's id of the first process inside.

        The process waits (`--block-fd`) until it is in its control group, then until its standard input closes.

        Args:
            program: path of bubblewrap.
            root: the unpacked image, shown under a writable layer in memory.
            mounts: paths of the host with their read-only paths inside.
        """
        info_read, info_write = os.pipe()
        block_read, block_write = os.pipe()
        filter_fd = make_memfd(self._filter)
        arguments = [
            "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--new-session", "--clearenv",
            "--hostname", "task", "--overlay-src", str(root), "--tmp-overlay", "/", "--proc", "/proc", "--dev", "/dev",
            "--cap-drop", "ALL", "--info-fd", str(info_write), "--block-fd", str(block_read), "--chdir", "/",
            "--setenv", "PATH", PATH,
        ]  # fmt: skip
        for name in CLOSED:
            arguments += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
        arguments += ["--seccomp", str(filter_fd)] if self._filter else []
        for host, path_inside in mounts.items():
            arguments += ["--ro-bind", host, path_inside]
        arguments_fd = make_memfd(
            "".join(f"{argument}\0" for argument in arguments).encode()
        )  # processes inside can read the command line
        argv = [program, "--args", str(arguments_fd), "sh", "-c", "read _"]
        passed_fds = (info_write, block_read, filter_fd, arguments_fd)
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=passed_fds,
                env={},
            )
        finally:
            for fd in passed_fds:
                os.close(fd)
        pid = read_child_pid(info_read, self._process.pid)
        try:
            if self._group is not None:
                self._group.add_process(pid)
            with suppress(BrokenPipeError):
                os.write(block_write, b"!")
        finally:
            os.close(block_write)
        return pid

    def build_command(
        self, argv: Sequence[str], environment: Mapping[str, str], user: str | None, workdir: str | None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command that enters the container. Its order is in a file that only this user can read.

        Raises:
            SandboxFailure: `user` is not root, the only user.
        """
        if user not in (None, "0", "root"):
            raise SandboxFailure(f"bubblewrap has no user but root, the task needs {user}", retryable=False)
        self._files += 1
        file = self.folder / f"order-{self._files}"
        file.touch(mode=0o600)
        groups = [] if self._group is None else [str(folder) for folder in self._group.folders]
        variables = {**self._environment, **environment}
        order = {"argv": list(argv), "environment": variables, "workdir": workdir or "/", "groups": groups}
        file.write_text(json.dumps({**order, "filter": self._filter.hex()}))
        return [sys.executable, "-I", "-S", enter.__file__, str(self.pid), self.spell_spaces(), "run", str(file)], {}

    def read_variable(self, name: str) -> str:
        """Return a variable of the container's commands; "" without the variable."""
        return self._environment.get(name, "")

    def list_changes(self) -> list[Change]:
        """Return nothing: the writable layer cannot be seen from outside."""
        return []

    def close(self) -> None:
        """End all processes of the container; its writable layer disappears with them."""
        if self._process is not None:
            first_pid = getattr(self, "pid", None)
            if first_pid is not None and self.is_alive():
                os.kill(first_pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.communicate()  # bubblewrap ends after the first process, which ends after all others
            self._process = None
        if self._group is not None:
            self._group.remove()
            self._group = None
        self._held_folder.remove()


def _make_group(limits: ContainerLimits) -> ControlGroup | None:
    """Return a control group for memory and processes; None if no limit is set or no group is writable."""
    if not limits.list_set():
        return None
    memory, processes = (limits.memory_mb or 0) << 20, limits.processes or UNLIMITED >> 20  # MiB to bytes
    return make_control_group(Limits(memory=memory or UNLIMITED, processes=processes))
