"""Starts a long-running program (a tool server, or a service) inside a bubblewrap sandbox.

Invariant: the program sees the folders of `walls`, one writable working folder, and only the given variables. Memory is
limited per process, not in total. The working folder has no size limit of its own.
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
from ajet_sandbox.walls import ConfinedProgram, ShownFolders, wall_command

SERVER_LIMITS = Limits(memory=2 << 30, processes=128)
"""The limits of a tool server."""


@dataclass(frozen=True, slots=True)
class Walls:
    """What a sandboxed program may access: working folder, shown folders, user id and limits."""

    workdir: Path
    """Shown as FOLDER, the program's working folder."""
    shown: tuple[Path, ...] = ()
    uid: int | None = None
    """The program's own user, if possible; equal for programs with the same working folder."""
    limits: Limits = Limits()


def wall_program(
    command: Sequence[str], walls: Walls, environment: Mapping[str, str], shown: ShownFolders | None = None
) -> ConfinedProgram:
    """Return the command line that starts a program in a sandbox.

    Args:
        environment: the program's variables.
        shown: the already searched folders of `walls.shown`; None to search them now.

    Raises:
        SandboxFailure: the sandbox cannot be prepared.
    """
    default_variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
    try:
        environment_fd = make_memfd(json.dumps({**default_variables, **environment}).encode())
    except OSError as error:
        raise SandboxFailure(f"the sandbox cannot be created: {error}; `ajet doctor` checks the sandbox") from error
    inside_settings = {"memory": walls.limits.memory, "disk": walls.limits.disk, "environment": environment_fd}
    bubblewrap_args = ["--bind", str(walls.workdir), FOLDER]
    try:
        shown_folders = shown or ShownFolders.of(walls.shown)
        program = wall_command(
            first.__file__,
            command,
            shown_folders,
            walls.limits,
            walls.uid,
            more=bubblewrap_args,
            settings=inside_settings,
        )
    except BaseException:
        os.close(environment_fd)
        raise
    return replace(program, descriptors=(*program.descriptors, environment_fd))
