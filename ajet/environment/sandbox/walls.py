"""Walls: bubblewrap's command line for everything of this machine that runs behind them and is shown folders of it: a
tool server, a service, a workflow.

Invariant: inside are this machine's programs, this Python, and the folders that are shown, read-only and with every
`.env` file in them empty, however deep it lies; no other process, no network, and no variable of this environment.
There is no other way to show a folder than `Shown`, which finds those files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.environment.sandbox.bubblewrap import (
    FOLDER,
    bubblewrap_program,
    confined,
    filled,
    folders_shown,
    identity_files,
    outermost,
    programs_shown,
    writable,
)
from ajet.environment.sandbox.contract import Limits
from ajet.environment.sandbox.identity import SYS_ADMIN, counts_by_namespace, has_capability
from ajet.schema.errors import SandboxFailure

_NOT_THE_PERSONS = frozenset({".git", "node_modules", "__pycache__"})
_OF_AN_ENVIRONMENT = frozenset({"bin", "include", "lib", "lib64", "share"})
"""Folders beside a `pyvenv.cfg`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Folders that are seen inside, and the files in them that are empty there."""

    folders: tuple[str, ...]
    secrets: tuple[str, ...]

    @classmethod
    def of(cls, folders: Iterable[Path], code: Iterable[Path] = ()) -> Shown:
        """Looked for now. `code`: folders and files that are not searched: a Python's. Those that hold a person's whole
        home are left out of them."""
        wanted = [Path(os.path.abspath(each)) for each in folders]
        also = [each for each in (*code, *_own_python()) if each.exists() and not holds_more(each)]
        shown = tuple(outermost([*wanted, *also]))
        return cls(shown, tuple(sorted(_secrets(wanted, shown))))


@dataclass(frozen=True, slots=True)
class Walled:
    """How a program behind walls is started."""

    argv: list[str]
    descriptors: tuple[int, ...]
    """To hand on, and to close then."""
    user: int | None
    """Who to start it as."""


def walled(
    program: str,
    command: Sequence[str],
    shown: Shown,
    limits: Limits,
    uid: int | None,
    *,
    more: Sequence[str] = (),
    ways: Sequence[str] = (),
    told: Mapping[str, Any] | None = None,
) -> Walled:
    """`program`: of `sandbox.inside`, which takes on user and limits and becomes `command`; `told`: what it is told
    beside. `uid`: of a sandbox's own (`fresh_uid`). `more`: further words for bubblewrap; `ways`: places of the
    root that they need a folder for. Raises SandboxFailure."""
    bubblewrap = bubblewrap_program()
    if bubblewrap is None:
        raise SandboxFailure("bubblewrap is not installed", retryable=False)
    as_root = uid is not None and has_capability(SYS_ADMIN)
    descriptors: list[int] = []
    try:
        argv = [bubblewrap, "--die-with-parent", *confined(as_root, descriptors), *programs_shown()]
        argv += [*identity_files(uid if as_root else None, descriptors), *writable(limits.disk)]
        argv += folders_shown(shown.folders, *ways)
        for secret in shown.secrets:
            descriptors.append(filled(b""))
            argv += ["--perms", "0444", "--ro-bind-data", str(descriptors[-1]), secret]
    except OSError as error:
        _close(descriptors)
        raise SandboxFailure(f"a sandbox cannot be prepared: {error.strerror}") from error
    except BaseException:
        _close(descriptors)
        raise
    inside = {
        "uid": uid if as_root else None,
        "files": limits.files,
        "processes": limits.processes if uid is not None or counts_by_namespace() else 0,
        "folder": FOLDER,
        "command": list(command),
        **(told or {}),
    }
    # root without its rights may not enter another's folder: the program inside does, once it is somebody else
    argv += [*more, "--remount-ro", "/", "--chdir", "/", "--"]
    argv += [sys.executable, "-I", "-S", program, json.dumps(inside)]
    return Walled(argv, tuple(descriptors), None if as_root else uid)


def holds_more(folder: Path) -> bool:
    """Whether it is a home folder, or holds one."""
    whole = Path(os.path.abspath(folder))
    return Path.home().is_relative_to(whole) or whole in (Path("/"), Path("/tmp"))


def dotenv_files(folder: Path) -> Iterator[Path]:
    """The `.env` files of a folder and of all folders below it, but for what others wrote: packages, git's own."""
    for here, below, files in os.walk(folder):
        others = _NOT_THE_PERSONS | _OF_AN_ENVIRONMENT if "pyvenv.cfg" in files else _NOT_THE_PERSONS
        below[:] = [name for name in below if name not in others]
        yield from (Path(here, name) for name in files if name.startswith(".env"))


def _secrets(searched: Sequence[Path], shown: Sequence[str]) -> set[str]:
    """Where files to be empty are inside. A link is as empty as what it leads to, if that is shown."""
    tops = [each for each in searched if not any(each != other and each.is_relative_to(other) for other in searched)]
    real = {Path(each): Path(each).resolve() for each in (*shown, "/usr")}
    found: set[str] = set()
    for file in (each for top in tops for each in dotenv_files(top) if each.is_file()):
        if not file.is_symlink():
            found.add(str(file))
            continue
        target = file.resolve()
        found |= {str(top / target.relative_to(there)) for top, there in real.items() if target.is_relative_to(there)}
    return found


def _own_python() -> Iterator[Path]:
    """Folders of this Python, of those that it is a link to, and what is run of ours inside."""
    yield from (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).with_name("inside"))
    here = Path(sys.executable)
    for _ in range(16):
        yield here.parent.parent
        if not here.is_symlink():
            return
        here = here.parent / os.readlink(here)


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)
