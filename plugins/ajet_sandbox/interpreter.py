"""The Python interpreter of a sandbox: which one, which of its folders are shown, and the programs passed to it.

Invariant: of a virtual environment only the packages and the underlying Python are shown, not its scripts.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ajet.schema import frames
from ajet.schema.errors import ConfigError, SandboxFailure

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
    """A Python interpreter that sandboxes can start.

    Args:
        prefix: installation folder.
        program: name of the executable below `bin`.
        packages: folders of importable modules.
        reads_our_bytecode: True if it reads the bytecode of the current Python.
    """

    prefix: str
    program: str
    packages: tuple[str, ...]
    reads_our_bytecode: bool

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the interpreter's own folders below the prefix.

        They are listed, because the prefix may also be a project: `conda create -p .`
        """
        return tuple(name for name in _PARTS if Path(self.prefix, name).exists())

    @property
    def path(self) -> str:
        """Path of the executable on the host."""
        return f"{self.prefix}/bin/{self.program}"

    def select_for_user(self, uid: int | None) -> SandboxPython:
        """Return this interpreter, or the distribution's if the user cannot start this one.

        Args:
            uid: the sandbox's user id; None for the current user.

        Raises:
            SandboxFailure: the user can start neither.
        """
        if uid is None or is_reachable(self.path):
            return self
        system_python = find_system_interpreter()
        if system_python is None or self.packages:
            raise SandboxFailure(f"another user cannot start {self.path}", retryable=False)
        return system_python


def is_reachable(path: str) -> bool:
    """Return True if every user can start a program at the path."""
    resolved = Path(path).resolve()
    # 0o001 is the right of other users to execute a file, or to enter a folder.
    return all(entry.stat().st_mode & 0o001 for entry in (resolved, *resolved.parents))


def find_own_interpreter() -> SandboxPython:
    """Return the current interpreter with only its standard library."""
    program = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return SandboxPython(sys.base_prefix, program, (), reads_our_bytecode=True)


@lru_cache(maxsize=4)
def probe_interpreter(path: str) -> SandboxPython:
    """Start the Python at a path, and return its installation with the packages of its virtual environment.

    Raises:
        ConfigError: the program cannot be started, or is no Python.
    """
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
    """Return the distribution's interpreter, which every user can start, or None."""
    program = shutil.which("python3", path="/usr/bin:/bin")
    return probe_interpreter(program) if program else None


# The programs of `inside` as a single value, started by a bare Python: no file is bound or installed inside.
# Invariant: an interpreter of the same version gets compiled code, any other interpreter the source.
_PACKAGE = "ajet_sandbox.inside"
_MODULES = ("files", "kernel", "usage", "call", "session", "piped", "resident")
_GO = """\
import marshal,os,sys
def go(settings,parts):
    class Loader:
        def find_spec(self,name,path=None,target=None):
            if name in parts:
                return type(sys.__spec__)(name,self,is_package=not parts[name])
        def create_module(self,spec): return None
        def exec_module(self,module): exec(parts[module.__name__],module.__dict__)
    sys.meta_path.insert(0,Loader())
    from ajet_sandbox.inside.resident import main
    main(settings)
"""
START = f"{_GO}with open(%d,'rb') as file: given=marshal.load(file)\ngo(*given)\n"
"""Code for `python -c`, with a placeholder for the descriptor to read from."""
START_PIPED = f"""\
{_GO}
def whole(size):
    got=b''
    while len(got)<size:
        more=os.read(0,size-len(got))
        if not more: sys.exit(1)
        got+=more
    return got
go(*marshal.loads(whole(int.from_bytes(whole(4),'big'))))
"""
"""The same for standard input, with a length of four bytes first."""


def pack_bundle(settings: Mapping[str, Any], *, compiled: bool) -> bytes:
    """Pack the settings and the programs of `inside` for the start of a resident process.

    Args:
        compiled: True to pass bytecode instead of text.
    """
    return marshal.dumps((dict(settings), _load_modules(compiled)), 2)


@lru_cache(maxsize=2)
def _load_modules(compiled: bool) -> dict[str, Any]:
    """Return the code of the programs of `inside` by module name, compiled or as source.

    Their parent packages have the value "".
    """
    packages = ["ajet", "ajet.schema", "ajet_sandbox", _PACKAGE]
    code_by_module: dict[str, Any] = dict.fromkeys(packages, "")
    folder = Path(__file__).parent / "inside"
    files = {f"{_PACKAGE}.{name}": folder / f"{name}.py" for name in _MODULES}
    for name, file in {frames.__name__: Path(frames.__file__), **files}.items():
        text = file.read_text(encoding="utf-8")
        shown_name = f"<sandbox {file.stem}>"
        code_by_module[name] = compile(text, shown_name, "exec", dont_inherit=True) if compiled else text
    return code_by_module


def is_same_version(magic: bytes) -> bool:
    """Return True if an interpreter with this magic number reads the current Python's bytecode."""
    return magic == importlib.util.MAGIC_NUMBER and sys.implementation.name == "cpython"
