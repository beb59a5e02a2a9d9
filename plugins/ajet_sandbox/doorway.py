"""The outer side of a sandbox's door: a socket in a temporary folder, and who serves it.

Invariant: a door that is there listens, so that one that nobody listens behind was left by a process that was killed,
and whoever comes next removes it.
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
"""A full backlog of a live process must not stop the start of this one."""


def run_until_closed(loop: asyncio.AbstractEventLoop, until_closed: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine in this thread, and cancel what is under way on the loop then. The loop stays open."""
    asyncio.set_event_loop(loop)
    loop.run_until_complete(until_closed)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def listen_at(path: str, listening: socket.socket) -> None:
    """The socket is there when it listens: no `sweep` of another process takes it for one that was left, as one is that
    is bound and does not listen yet. Raises OSError."""
    coming = f"{path[:-1]}~"  # as long: longer ones cannot be had
    listening.bind(coming)
    listening.listen(BACKLOG)
    os.rename(coming, path)


def remove_dead_doors(folders: str, name: str) -> None:
    """Remove what runs that were killed left: doors of that name that nobody listens behind, in folders of temporary
    files whose names begin so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{folders}*"):
        with socket.socket(socket.AF_UNIX) as guest:
            try:
                if folder.lstat().st_uid != os.geteuid():
                    continue  # another user may listen there and never accept
                guest.settimeout(CONNECT_TIMEOUT_S)
                guest.connect(str(folder / name))
            except ConnectionRefusedError:
                remove_folder(folder)
            except OSError:
                continue  # it is just being made, or somebody else's
