"""A program that stays, behind bubblewrap's walls: a tool server, spoken to over its pipes.

Invariant: it sees this machine's programs, the folders that it is shown, read-only and with the `.env` files at their
top empty, and one working folder that it may write to; no other process, no network, no variable but those that it is
given.
Memory is held for each of its processes, not for all together; its working folder has no size of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet.environment.sandbox.bubblewrap import (
    FOLDER,
    bubblewrap_program,
    confined,
    filled,
    folders_shown,
    identity_files,
    outermost,
    programs_shown,
    user_inside,
    writable,
)
from ajet.environment.sandbox.contract import Limits
from ajet.environment.sandbox.identity import counts_by_namespace
from ajet.environment.sandbox.inside import first
from ajet.schema.errors import SandboxFailure

FOR_SERVERS = Limits(memory=2 << 30, processes=128)
"""What a tool server may use."""


@dataclass(frozen=True, slots=True)
class Walls:
    """What a program is put behind."""

    workdir: Path
    """Shown as FOLDER, where the program begins."""
    shown: tuple[Path, ...] = ()
    uid: int | None = None
    """The user that it becomes, where there can be one: the same for all that share the working folder."""
    limits: Limits = Limits()
    secrets: tuple[Path, ...] = ()
    """Files in what is shown that are empty, beside the `.env` files at its top."""


@dataclass(frozen=True, slots=True)
class Walled:
    """How it is started."""

    argv: list[str]
    descriptors: tuple[int, ...]
    """To hand on, and to close then."""
    user: int | None
    """Who to start it as."""


def walled(command: Sequence[str], walls: Walls, environment: Mapping[str, str]) -> Walled:
    """Raises SandboxFailure."""
    bubblewrap = bubblewrap_program()
    if bubblewrap is None:
        raise SandboxFailure("bubblewrap is not installed", retryable=False)
    _, as_root = user_inside()
    descriptors: list[int] = []
    argv = [bubblewrap, "--die-with-parent", *confined(as_root, descriptors), *programs_shown()]
    argv += [*identity_files(walls.uid if as_root else None, descriptors), *writable(walls.limits.disk)]
    python = (Path(sys.prefix), Path(sys.base_prefix), Path(first.__file__))
    argv += folders_shown(outermost([*walls.shown, *python]))
    tops = {each.resolve() for shown in walls.shown for each in shown.glob(".env*") if each.is_file()}
    for secret in sorted(tops.union(walls.secrets)):
        descriptors.append(filled(b""))
        argv += ["--perms", "0444", "--ro-bind-data", str(descriptors[-1]), str(secret)]
    argv += ["--bind", str(walls.workdir), FOLDER]
    settings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
    descriptors.append(filled(json.dumps({**settings, **environment}).encode()))
    alone = walls.uid is not None or counts_by_namespace()
    inside = {
        "uid": walls.uid if as_root else None,
        "files": walls.limits.files,
        "memory": walls.limits.memory,
        "disk": walls.limits.disk,
        "processes": walls.limits.processes if alone else 0,
        "environment": descriptors[-1],
        "folder": FOLDER,
        "command": list(command),
    }
    argv += ["--remount-ro", "/", "--chdir", "/", "--"]  # root without its rights may not enter another's folder
    argv += [sys.executable, "-I", "-S", first.__file__, json.dumps(inside)]
    return Walled(argv, tuple(descriptors), None if as_root else walls.uid)
