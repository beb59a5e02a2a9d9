"""Sandboxes where namespaces are forbidden: Landlock for files, a filter of system calls for sockets and shared memory,
a subreaper for what a call leaves; by Linux's own calls, no package.

Invariants: the resident itself is not confined (it has to end and count what is), each call is, before its first line;
as root a user of its own, else a kernel whose Landlock keeps signals in (ABI 6); less is no sandbox and is refused.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

from ajet.record.held_folder import HeldFolder
from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import NO_VARIABLES, Limits
from ajet_sandbox.identity import fresh_uid
from ajet_sandbox.inside.kernel import landlock_version
from ajet_sandbox.interpreter import Interpreter, own_interpreter, reachable
from ajet_sandbox.seccomp import seccomp_filter
from ajet_sandbox.warm import Plan, Warm

KEEPS_SIGNALS = 6
"""The ABI from which on Landlock keeps signals inside."""
_READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ssl",
             "/etc/ca-certificates", "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/full")


class Beside(Warm):
    """A sandbox whose folder is a temporary one of the host's; what `landlock` and `none` share."""

    def __init__(
        self,
        limits: Limits,
        environment: Mapping[str, str] = NO_VARIABLES,
        *,
        python: Interpreter | None = None,
        cgroups: bool = True,
    ) -> None:
        self._python = python or own_interpreter()
        self._made: HeldFolder | None = None
        super().__init__(limits, environment, cgroups=cgroups)

    def _beside(self, line: int, user: int | None, code: bytes, *, confined: bool) -> Plan:
        python = self._python.for_user(user)
        self.counts_apart = user is not None
        self._made = HeldFolder("ajet-sandbox-", _place(user), mode=0o711)
        self.folder = str(self._made.path / "box")
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
        return Plan([python.path], settings, python.compiled, user)

    def _clean(self) -> None:
        if self._made is not None:
            self._made.remove()


def _place(user: int | None) -> str:
    """A folder for temporary files that this user can reach."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if user is None or reachable(place):
            return place
    raise SandboxFailure("no folder for temporary files can be reached by another user", retryable=False)


class Landlock(Beside):
    """See the module."""

    mechanism = "landlock"

    def _plan(self, line: int) -> Plan:
        user = fresh_uid()
        version = landlock_version()
        if version == 0:
            raise SandboxFailure("Landlock is absent or off (it needs Linux 5.13)", retryable=False)
        if user is None and version < KEEPS_SIGNALS:
            why = f"Landlock's ABI {version} lets code signal this user's processes (ABI {KEEPS_SIGNALS}, Linux 6.12)"
            raise SandboxFailure(why, retryable=False)
        code = seccomp_filter(namespaces=False, counted=self._group is None)
        if not code:
            raise SandboxFailure("no filter of system calls is known for this processor", retryable=False)
        return self._beside(line, user, code, confined=True)


class Unconfined(Beside):
    """No sandbox: code runs as this user, sees what it sees, and may do what it may. Its limits hold as far as limits
    do, and what it leaves running is ended. Only ever chosen by name."""

    mechanism = "none"

    def _plan(self, line: int) -> Plan:
        return self._beside(line, None, b"", confined=False)
