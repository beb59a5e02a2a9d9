"""A program that stays, behind bubblewrap's walls: a tool server, spoken to over its pipes; a service.

Invariant: it sees what `walls` shows, and one working folder that it may write to; no variable but those that it is
given. Memory is held for each of its processes, not for all together; its working folder has no size of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import Limits
from ajet_sandbox.bubblewrap import FOLDER, make_memfd
from ajet_sandbox.inside import first
from ajet_sandbox.walls import ShownFolders, WalledProgram, wall_command

SERVER_LIMITS = Limits(memory=2 << 30, processes=128)
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


def wall_program(
    command: Sequence[str], walls: Walls, environment: Mapping[str, str], shown: ShownFolders | None = None
) -> WalledProgram:
    """How it is started. `shown`: of `walls.shown`; without it they are searched now. Raises SandboxFailure."""
    settings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
    try:
        environment_fd = make_memfd(json.dumps({**settings, **environment}).encode())
    except OSError as error:
        raise SandboxFailure(f"a sandbox cannot be prepared: {error.strerror}") from error
    inside_settings = {"memory": walls.limits.memory, "disk": walls.limits.disk, "environment": environment_fd}
    more = ["--bind", str(walls.workdir), FOLDER]
    try:
        seen = shown or ShownFolders.of(walls.shown)
        wall = wall_command(first.__file__, command, seen, walls.limits, walls.uid, more=more, settings=inside_settings)
    except BaseException:
        os.close(environment_fd)
        raise
    return replace(wall, descriptors=(*wall.descriptors, environment_fd))
