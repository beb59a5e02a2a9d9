"""The warm Python of a sandbox, and its files on the machine.

Invariant: a virtual environment is shown without its scripts: only the packages and the underlying Python.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ajet.schema.errors import ConfigError, SandboxFailure
from ajet_sandbox.bundle import is_same_version

_PROBE = (
    "import importlib.util,json,sys,sysconfig;"
    "print(json.dumps([sys.base_prefix,sys.base_exec_prefix,sys.version_info[:2],importlib.util.MAGIC_NUMBER.hex(),"
    "[sysconfig.get_path('purelib'),sysconfig.get_path('platlib')] if sys.prefix!=sys.base_prefix else []]))"
)
_PROBE_TIMEOUT_S = 30.0
_PARTS = ("bin", "etc", "include", "lib", "lib64", "libexec", "share", "ssl")
NEUTRAL = "/py"
"""Folder of the interpreter inside the sandbox."""


@dataclass(frozen=True, slots=True)
class SandboxPython:
    """A Python interpreter for sandboxes.

    `prefix`: the installation folder. `program`: the name below bin. `packages`: folders of importable modules.
    `reads_our_bytecode`: True if compatible with the current Python's bytecode.
    """

    prefix: str
    program: str
    packages: tuple[str, ...]
    reads_our_bytecode: bool

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the Python's folders below the prefix. The prefix may also be a project: `conda create -p .`"""
        return tuple(name for name in _PARTS if Path(self.prefix, name).exists())

    @property
    def path(self) -> str:
        """The program's path on the host."""
        return f"{self.prefix}/bin/{self.program}"

    def select_for_user(self, uid: int | None) -> SandboxPython:
        """Return the interpreter, or the distribution's if another user (None: the current user) cannot start it.

        Raises SandboxFailure.
        """
        if uid is None or is_reachable(self.path):
            return self
        other = find_system_interpreter()
        if other is None or self.packages:
            raise SandboxFailure(f"another user cannot start {self.path}", retryable=False)
        return other


def is_reachable(path: str) -> bool:
    """Return True if every user can reach the path, and start a program at the path."""
    resolved = Path(path).resolve()
    return all(each.stat().st_mode & 0o001 for each in (resolved, *resolved.parents))


def find_own_interpreter() -> SandboxPython:
    """Return the current interpreter with only its standard library."""
    program = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return SandboxPython(sys.base_prefix, program, (), reads_our_bytecode=True)


@lru_cache(maxsize=4)
def probe_interpreter(path: str) -> SandboxPython:
    """Return the interpreter at a path, with its environment's packages. Raises ConfigError."""
    try:
        result = subprocess.run(
            [path, "-I", "-c", _PROBE],
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        prefix, _, version, magic, packages = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"{path} is not a Python that can be started: {error}.", where="ajet.environment.sandbox_python"
        ) from error
    program = f"python{version[0]}.{version[1]}"
    return SandboxPython(prefix, program, tuple(dict.fromkeys(packages)), is_same_version(bytes.fromhex(magic)))


def find_system_interpreter() -> SandboxPython | None:
    """Return the distribution's interpreter, startable by every user."""
    found = shutil.which("python3", path="/usr/bin:/bin")
    return probe_interpreter(found) if found else None
