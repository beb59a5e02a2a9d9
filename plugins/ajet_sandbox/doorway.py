"""The host's side of a door: the Unix socket that is a sandbox's only connection to the outside.

Invariant: a door in use has a listener. A socket without a listener was left by a killed process, and the next run
removes it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ajet.record.remove_folder import remove_folder

BACKLOG = 1024
CONNECT_TIMEOUT_S = 1.0
"""Limits the wait for a live process with a full backlog."""


def run_until_closed(loop: asyncio.AbstractEventLoop, until_closed: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on `loop` in this thread, then cancel the remaining tasks. The loop stays open."""
    asyncio.set_event_loop(loop)
    loop.run_until_complete(until_closed)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def listen_at(path: str, listening: socket.socket) -> None:
    """Bind the socket and listen at a path, under a temporary name that is renamed afterwards.

    So `remove_dead_doors` of another process never sees a bound socket that does not listen yet. Raises OSError.
    """
    temporary_path = f"{path[:-1]}~"  # as long as `path`, because the length of a socket's path is limited
    listening.bind(temporary_path)
    listening.listen(BACKLOG)
    os.rename(temporary_path, path)


def remove_dead_doors(folders: str, name: str) -> None:
    """Remove sockets that killed runs left in temporary folders.

    Args:
        folders: prefix of the folders' names.
        name: name of the socket in its folder.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{folders}*"):
        with socket.socket(socket.AF_UNIX) as client:
            try:
                # Only own folders are tested: connecting to a foreign socket could block until the timeout.
                if folder.lstat().st_uid != os.geteuid():
                    continue  # another user may listen there and never accept
                client.settimeout(CONNECT_TIMEOUT_S)
                client.connect(str(folder / name))
            except ConnectionRefusedError:
                remove_folder(folder)
            except OSError:
                continue  # the socket is being created, or belongs to another user
