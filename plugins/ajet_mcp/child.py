"""A process on pipes, spoken to from an event loop.

Invariant: it inherits its three pipes and the descriptors that it is given, and nothing else, on every loop. uvloop
starts processes on sockets, which no program can open by name (`/dev/stderr`), and leaves them copies of those: what a
program has started would keep its output open, and its death unnoticed.
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
    """Made by `started`; of one loop."""

    stdin: StreamWriter
    stdout: StreamReader
    stderr: StreamReader

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid, self._process, self._ended = process.pid, process, asyncio.Event()
        self._loop, self._pipes = asyncio.get_running_loop(), list[BaseTransport]()
        threading.Thread(target=self._wait_for_exit, name=f"waits for {process.pid}", daemon=True).start()

    @property
    def returncode(self) -> int | None:
        """The exit code, as `subprocess` has it; None while it runs."""
        return self._process.returncode if self._ended.is_set() else None

    async def wait(self) -> None:
        """Until it has ended."""
        await self._ended.wait()

    def let_go(self) -> None:
        """Close this side of its pipes, whoever still holds the other ends."""
        for each in self._pipes:
            each.close()

    async def connect(self) -> None:
        """Have its pipes on the loop."""
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
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(self._ended.set)


async def started(command: Sequence[str], **settings: Any) -> Child:
    """A process, with those of Popen's settings. Raises OSError and ValueError, as Popen does."""
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
