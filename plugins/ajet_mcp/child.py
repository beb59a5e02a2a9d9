"""A child process with three pipes, used from an event loop.

Invariant: on every event loop the child inherits its three pipes and the given descriptors, and no others. uvloop
starts processes on sockets instead. A program cannot open a socket by name (`/dev/stderr`). A grandchild also keeps a
copy of the sockets, so the output stays open and the death of the child stays unnoticed.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from asyncio import BaseTransport, StreamReader, StreamReaderProtocol, StreamWriter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


class Child:
    """A process created by `started`; belongs to one event loop."""

    stdin: StreamWriter
    stdout: StreamReader
    stderr: StreamReader

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid, self._process, self._ended = process.pid, process, asyncio.Event()
        self._loop, self._pipes = asyncio.get_running_loop(), list[BaseTransport]()
        threading.Thread(target=self._wait_for_exit, name=f"waits for {process.pid}", daemon=True).start()

    @property
    def returncode(self) -> int | None:
        """The exit code as in `subprocess`; None while the process runs."""
        return self._process.returncode if self._ended.is_set() else None

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._ended.wait()

    def let_go(self) -> None:
        """Close this side of the pipes, even if another process still holds the other ends."""
        for each in self._pipes:
            each.close()

    async def connect(self) -> None:
        """Connect the pipes to the event loop."""
        protocol = StreamReaderProtocol(StreamReader())
        transport, _ = await self._loop.connect_write_pipe(lambda: protocol, self._process.stdin)
        self._pipes.append(transport)
        self.stdin = StreamWriter(transport, protocol, None, self._loop)
        self.stdout, self.stderr = (
            await self._open_reader(self._process.stdout),
            await self._open_reader(self._process.stderr),
        )

    async def _open_reader(self, pipe: Any) -> StreamReader:
        reader = StreamReader()
        transport, _ = await self._loop.connect_read_pipe(lambda: StreamReaderProtocol(reader), pipe)
        self._pipes.append(transport)
        return reader

    def _wait_for_exit(self) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # the loop is closed, without waiters
            self._loop.call_soon_threadsafe(self._ended.set)


async def started(command: Sequence[str], **settings: Any) -> Child:
    """Start a process with the given Popen settings and connect its pipes.

    Raises:
        OSError, ValueError: as raised by Popen.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen([*command], bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, **settings)
    child = Child(process)
    try:
        await child.connect()
    except BaseException:
        process.kill()
        child.let_go()
        raise
    return child
