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
from ajet_sandbox.bundle import same_version

_ASK = (
    "import importlib.util,json,sys,sysconfig;"
    "print(json.dumps([sys.base_prefix,sys.base_exec_prefix,sys.version_info[:2],importlib.util.MAGIC_NUMBER.hex(),"
    "[sysconfig.get_path('purelib'),sysconfig.get_path('platlib')] if sys.prefix!=sys.base_prefix else []]))"
)
_SECONDS = 30.0
_PARTS = ("bin", "etc", "include", "lib", "lib64", "libexec", "share", "ssl")
NEUTRAL = "/py"
"""Where its folder lies inside."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`prefix`: its folder; `program`: the name below bin; `packages`: folders of modules that can be imported;
    `compiled`: whether it reads this Python's compiled code."""

    prefix: str
    program: str
    packages: tuple[str, ...]
    compiled: bool

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of what belongs to it in its folder, which may be a project's, too: `conda create -p .`"""
        return tuple(name for name in _PARTS if Path(self.prefix, name).exists())

    @property
    def path(self) -> str:
        """Here."""
        return f"{self.prefix}/bin/{self.program}"

    def for_user(self, uid: int | None) -> Interpreter:
        """This interpreter, or the distribution's where another user (None: this one) cannot start it. Raises
        SandboxFailure."""
        if uid is None or reachable(self.path):
            return self
        other = systems_interpreter()
        if other is None or self.packages:
            raise SandboxFailure(f"{self.path} cannot be started by another user", retryable=False)
        return other


def reachable(path: str) -> bool:
    """Whether every user can go there, and start it where it is a program."""
    whole = Path(path).resolve()
    return all(each.stat().st_mode & 0o001 for each in (whole, *whole.parents))


def own_interpreter() -> Interpreter:
    """This one, with its standard library alone."""
    program = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return Interpreter(sys.base_prefix, program, (), compiled=True)


@lru_cache(maxsize=4)
def interpreter_at(path: str) -> Interpreter:
    """The one at a path, with its environment's packages. Raises ConfigError."""
    try:
        told = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, check=True
        )
        prefix, _, version, magic, packages = json.loads(told.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"{path} is no Python that can be started: {error}.", where="ajet.environment.sandbox_python"
        ) from error
    program = f"python{version[0]}.{version[1]}"
    return Interpreter(prefix, program, tuple(dict.fromkeys(packages)), same_version(bytes.fromhex(magic)))


def systems_interpreter() -> Interpreter | None:
    """The distribution's, which every user can start."""
    found = shutil.which("python3", path="/usr/bin:/bin")
    return interpreter_at(found) if found else None
