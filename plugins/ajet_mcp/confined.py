"""Servers of a file with `confined: true`: commands behind a sandbox's walls.

Invariant: all confined servers of an attempt, or of an episode of `ajet env up`, share one empty working folder, which
goes with it, and one user where there can be one; they see nothing else of this machine but its programs, the folder of
the file that names them and the folders under `shows`, read-only and their `.env` files empty. Where there is no
sandbox they are not started.
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
    """The server as it is started in `workdir`, whose user is `uid`; one that is not confined as it is."""
    if not server.confined:
        return server
    assert server.cwd is not None
    command = tuple(_resolve_word(word, server.cwd) for word in server.command)
    memory = server.resources.memory << 20
    limits = replace(SERVER_LIMITS, memory=memory) if memory else SERVER_LIMITS
    return replace(server, command=command, walls=Walls(workdir, (server.cwd, *server.shows), uid, limits))


def require_sandbox(servers: Sequence[Server]) -> None:
    """Raises ConfigError where servers are confined and this machine has no sandbox that stays, or one is an image that
    is not here."""
    require_images(servers)
    confined = [each.name for each in servers if each.confined]
    if not confined:
        return
    try:
        choose_mechanism("bubblewrap")
    except ConfigError as error:
        raise ConfigError(
            f"The server {confined[0]} is confined, and cannot be: {error.what}",
            where=f"mcpServers.{confined[0]}.confined",
            expected="bubblewrap, whatever environment.sandbox says",
            do=error.do
            or f"{format_command('doctor')} says what is missing; `confined: false` runs the server as this user",
        ) from None


class Workdir:
    """An attempt's. Made when the first server needs it."""

    def __init__(self) -> None:
        self._root: HeldFolder | None = None
        self._made: tuple[Path, int | None] | None = None

    def made(self) -> tuple[Path, int | None]:
        """The folder, and whose it is where it can be one's own."""
        if self._made is None:
            self._root, uid = HeldFolder("ajet-tools-", mode=0o711), choose_uid()
            self._made = make_workdir(self._root.path, "work", uid), uid
        return self._made

    def remove(self) -> None:
        """Remove the folder with what is in it. Idempotent."""
        if self._root is not None:
            self._root.remove()
        self._root = self._made = None


def _resolve_word(word: str, folder: Path) -> str:
    """A file of the folder by its whole path: the program begins in another one."""
    return str(folder / word) if word and os.path.exists(folder / word) else word
