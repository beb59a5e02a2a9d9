"""Sandboxes for tool servers with `confined: true` in a servers file.

Invariants: all confined servers of an attempt, or of an episode of `ajet env up`, share one empty working folder and,
if possible, one user id of their own. The folder is removed with the attempt. The servers see the machine's programs,
the folder of their file and the folders under `shows`, read-only and with empty `.env` files, and no other files.
Without a sandbox they are not started.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ajet.record.held_folder import HeldFolder, make_workdir
from ajet.schema.commands import format_command
from ajet.schema.errors import ConfigError
from ajet_mcp.images import require_images
from ajet_mcp.servers import Server
from ajet_sandbox.choose import choose_mechanism
from ajet_sandbox.identity import choose_uid
from ajet_sandbox.program import SERVER_LIMITS, Walls


def behind_walls(server: Server, workdir: Path, uid: int | None) -> Server:
    """Return the server with the settings of its sandbox (`walls`), or unchanged if it is not confined.

    Args:
        workdir: the writable working folder inside the sandbox.
        uid: owner of `workdir` and user of the server; None for the current user.
    """
    if not server.confined:
        return server
    assert server.cwd is not None
    command = tuple(_resolve_word(argument, server.cwd) for argument in server.command)
    memory = server.resources.memory << 20
    limits = replace(SERVER_LIMITS, memory=memory) if memory else SERVER_LIMITS
    return replace(server, command=command, walls=Walls(workdir, (server.cwd, *server.shows), uid, limits))


def require_sandbox(servers: Sequence[Server]) -> None:
    """Check that confined servers have a sandbox and that container images are present.

    Raises:
        ConfigError: this machine has no sandbox for a confined server, or an image is missing.
    """
    require_images(servers)
    confined = [server.name for server in servers if server.confined]
    if not confined:
        return
    try:
        choose_mechanism("bubblewrap")
    except ConfigError as error:
        raise ConfigError(
            f"The server {confined[0]} is confined, but this machine has no working sandbox: {error.what}",
            where=f"mcpServers.{confined[0]}.confined",
            expected="bubblewrap, for every value of environment.sandbox",
            do=error.do
            or (
                f"{format_command('doctor')} reports what is missing; `confined: false` runs the server as the "
                "current user"
            ),
        ) from None


class Workdir:
    """The working folder of an attempt, created when the first confined server needs it."""

    def __init__(self) -> None:
        self._root: HeldFolder | None = None
        self._folder_and_user: tuple[Path, int | None] | None = None

    def made(self) -> tuple[Path, int | None]:
        """Create the folder on first use. Return it with the servers' user id, or None for the current user."""
        if self._folder_and_user is None:
            self._root, uid = HeldFolder("ajet-tools-", mode=0o711), choose_uid()
            self._folder_and_user = make_workdir(self._root.path, "work", uid), uid
        return self._folder_and_user

    def remove(self) -> None:
        """Remove the folder and its content. Idempotent."""
        if self._root is not None:
            self._root.remove()
        self._root = self._folder_and_user = None


def _resolve_word(argument: str, folder: Path) -> str:
    """Return the full path of an argument that names a file in `folder`, else the argument unchanged.

    The sandboxed program starts in another folder, where a relative path would not resolve.
    """
    return str(folder / argument) if argument and os.path.exists(folder / argument) else argument
