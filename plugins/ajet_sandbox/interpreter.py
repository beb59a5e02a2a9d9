"""The Python that is warm inside a sandbox, and what of the machine it needs.

Invariant: of a virtual environment only its packages and the Python below it are shown, none of its scripts.
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
"""Where its folder lies inside."""


@dataclass(frozen=True, slots=True)
class SandboxPython:
    """`prefix`: its folder; `program`: the name below bin; `packages`: folders of modules that can be imported;
    `compiled`: whether it reads this Python's compiled code."""

    prefix: str
    program: str
    packages: tuple[str, ...]
    reads_our_bytecode: bool

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of what belongs to it in its folder, which may be a project's, too: `conda create -p .`"""
        return tuple(name for name in _PARTS if Path(self.prefix, name).exists())

    @property
    def path(self) -> str:
        """Here."""
        return f"{self.prefix}/bin/{self.program}"

    def select_for_user(self, uid: int | None) -> SandboxPython:
        """This interpreter, or the distribution's where another user (None: this one) cannot start it. Raises
        SandboxFailure."""
        if uid is None or is_reachable(self.path):
            return self
        other = find_system_interpreter()
        if other is None or self.packages:
            raise SandboxFailure(f"{self.path} cannot be started by another user", retryable=False)
        return other


def is_reachable(path: str) -> bool:
    """Whether every user can go there, and start it where it is a program."""
    resolved = Path(path).resolve()
    return all(each.stat().st_mode & 0o001 for each in (resolved, *resolved.parents))


def find_own_interpreter() -> SandboxPython:
    """This one, with its standard library alone."""
    program = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return SandboxPython(sys.base_prefix, program, (), reads_our_bytecode=True)


@lru_cache(maxsize=4)
def probe_interpreter(path: str) -> SandboxPython:
    """The one at a path, with its environment's packages. Raises ConfigError."""
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
            f"{path} is no Python that can be started: {error}.", where="ajet.environment.sandbox_python"
        ) from error
    program = f"python{version[0]}.{version[1]}"
    return SandboxPython(prefix, program, tuple(dict.fromkeys(packages)), is_same_version(bytes.fromhex(magic)))


def find_system_interpreter() -> SandboxPython | None:
    """The distribution's, which every user can start."""
    found = shutil.which("python3", path="/usr/bin:/bin")
    return probe_interpreter(found) if found else None
