"""Sandboxes without namespaces: Landlock restricts files, a seccomp filter restricts sockets and shared memory.

Leftover processes are found by a subreaper. Only Linux system calls are used, no package. Invariants: the resident (the
Python process that forks for each call) is not confined, since it must kill and measure processes. Each call is
confined before its first line. As root a sandbox has its own user. Otherwise Landlock must confine signals (version 6
of its interface), and weaker settings are refused.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

from ajet.record.held_folder import HeldFolder
from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import NO_VARIABLES, Limits
from ajet_sandbox.identity import choose_uid
from ajet_sandbox.inside.kernel import read_landlock_version
from ajet_sandbox.interpreter import SandboxPython, find_own_interpreter, is_reachable
from ajet_sandbox.seccomp import seccomp_filter
from ajet_sandbox.warm import ResidentPlan, WarmSandbox

SIGNALS_ABI = 6
"""The first ABI of Landlock that confines signals."""
_READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ssl",
             "/etc/ca-certificates", "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")


class HostFolderSandbox(WarmSandbox):
    """Base of `landlock` and `none`: a sandbox whose working folder is a temporary folder of the host."""

    def __init__(
        self,
        limits: Limits,
        environment: Mapping[str, str] = NO_VARIABLES,
        *,
        python: SandboxPython | None = None,
        cgroups: bool = True,
    ) -> None:
        self._interpreter = python or find_own_interpreter()
        self._held_folder: HeldFolder | None = None
        super().__init__(limits, environment, cgroups=cgroups)

    def _plan_in_folder(self, line: int, user: int | None, code: bytes, *, confined: bool) -> ResidentPlan:
        """Create the working folder on the host, and return how to start the resident process.

        Args:
            line: descriptor of the resident's end of the connection.
            user: user id of the sandbox; None for the current user.
            code: filter of system calls; b"" for none.
            confined: True to restrict each call to its folders by Landlock.
        """
        python = self._interpreter.select_for_user(user)
        self.has_own_process_count = user is not None
        self._held_folder = HeldFolder("ajet-sandbox-", _find_temp_folder(user), mode=0o711)
        self.folder = str(self._held_folder.path / "box")
        os.mkdir(self.folder, 0o700)
        if user is not None:
            os.chown(self.folder, user, user)
        readable = [*_READABLE, *(f"{python.prefix}/{name}" for name in python.folders), *python.packages]
        environment = {
            "PATH": f"{python.prefix}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": self.folder, "TMPDIR": self.folder,
            "LANG": "C.UTF-8",
        }  # fmt: skip
        settings = {
            "line": line, "uid": None, "folder": self.folder, "filter": code, "longest": 1 << 30,
            "landlock": (readable, [self.folder], list(_DEVICES)) if confined else None,
            "packages": list(python.packages), "environment": environment | self._environment,
        }  # fmt: skip
        return ResidentPlan([python.path], settings, python.reads_our_bytecode, user)

    def _remove_leftovers(self) -> None:
        """Remove the temporary folder with the working folder."""
        if self._held_folder is not None:
            self._held_folder.remove()


def _find_temp_folder(user: int | None) -> str:
    """Return a folder for temporary files that the user id can access."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if user is None or is_reachable(folder):
            return folder
    raise SandboxFailure("another user can reach no folder for temporary files", retryable=False)


class LandlockSandbox(HostFolderSandbox):
    """A sandbox without namespaces: Landlock restricts files, a seccomp filter restricts system calls."""

    mechanism = "landlock"

    def _plan_start(self, line: int) -> ResidentPlan:
        """Return how to start the resident process.

        Raises:
            SandboxFailure: the kernel lacks Landlock, or its version is too old to protect this user's processes.
        """
        user = choose_uid()
        version = read_landlock_version()
        if version == 0:
            raise SandboxFailure("Landlock is absent or off (it needs Linux 5.13)", retryable=False)
        if user is None and version < SIGNALS_ABI:
            reason = f"Landlock's ABI {version} lets code signal this user's processes (ABI {SIGNALS_ABI}, Linux 6.12)"
            raise SandboxFailure(reason, retryable=False)
        syscall_filter = seccomp_filter(namespaces=False, counted=self._group is None)
        if not syscall_filter:
            raise SandboxFailure("ajet has no filter of system calls for this processor", retryable=False)
        return self._plan_in_folder(line, user, syscall_filter, confined=True)


class UnconfinedSandbox(HostFolderSandbox):
    """The mechanism `none`: no sandbox, code runs with the current user's rights.

    Limits apply as far as possible, and leftover processes are ended. It is used only if configured by name.
    """

    mechanism = "none"

    def _plan_start(self, line: int) -> ResidentPlan:
        """Return how to start the resident process as the current user, without filter and Landlock."""
        return self._plan_in_folder(line, None, b"", confined=False)
