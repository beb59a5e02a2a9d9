"""A server's process and all that it starts.

Invariants: it leads a process group of its own, gets of our environment only what a program needs to start, and ends
with all of its group; on Linux also what left the group (a daemon of its own session), known by a mark in its
environment, and the container of a server that is an image. What it says on standard error is kept up to a bound.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ajet.schema.errors import ConfigError, SandboxFailure
from ajet_mcp.child import Child, started
from ajet_mcp.contract import CallFailedError
from ajet_mcp.images import Contained, contained
from ajet_mcp.servers import Server
from ajet_sandbox.choose import choose_mechanism
from ajet_sandbox.engine import remove_container
from ajet_sandbox.program import wall_program
from ajet_sandbox.walls import ShownFolders

MARK = "AJET_TOOL_SERVER"
KEPT = 2_000
"""Bytes of standard error, the last ones."""
ENDS_S = 0.2
"""Seconds in which one that has closed its pipes ends, and its exit code is known."""
_GIVEN = "PATH HOME USER LOGNAME SHELL LANG LC_ALL TZ TERM TMPDIR VIRTUAL_ENV LD_LIBRARY_PATH NODE_PATH SSL_CERT_FILE"


class ServerProcess:
    """A running server. On the tools' loop."""

    def __init__(self, name: str, process: Child, mark: str, container: Contained | None = None) -> None:
        self.name, self.stdin, self.stdout = name, process.stdin, process.stdout
        self._process, self._mark, self._container = process, mark, container
        self._said = self.head = b""
        self._listening = asyncio.create_task(self._read_errors(process.stderr))

    @classmethod
    async def start(cls, server: Server) -> ServerProcess:
        """Raises CallFailedError."""
        mark = uuid.uuid4().hex if server.walls is None else ""  # behind walls all ends with the first process
        container = None
        try:
            if server.image:
                container = await _make_container(server)
                try:
                    process = await _start_program(
                        container.command, container.environment, None, mark, (container.descriptor,)
                    )
                finally:
                    os.close(container.descriptor)
            elif server.walls is None:
                process = await _start_program(server.command, server.env, server.cwd, mark)
            else:
                process = await _behind_walls(server)
        except (OSError, ValueError) as error:
            problem = CallFailedError(
                f"the MCP server {server.name} cannot be started: {error}", "environment", lost=True
            )
            problem.retryable = False
            raise problem from error
        return cls(server.name, process, mark, container)

    async def write(self, frame: bytes) -> None:
        """Write one line to the server. Raises CallFailedError."""
        try:
            self.stdin.write(frame + b"\n")
            await self.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise await self.gone() from error

    async def lines(self, limit: int) -> AsyncIterator[bytes | None]:
        """What it writes, line by line; None for one longer than `limit`, which is skipped as it comes. `head` then has
        its beginning."""
        left, skipping = bytearray(), False
        while chunk := await self.stdout.read(1 << 18):
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                left += part
                if not skipping and len(left) <= limit:
                    yield bytes(left)
                elif not skipping:
                    self.head = bytes(left[:256])
                    yield None
                left, skipping = bytearray(), False
            if skipping:
                continue
            left += rest
            if len(left) > limit:
                self.head, left, skipping = bytes(left[:256]), bytearray(), True
                yield None

    async def gone(self) -> CallFailedError:
        """The failure of what was asked of a process that has closed its pipes."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), ENDS_S)
        code = self._process.returncode
        how = "closed its output" if code is None else f"ended with exit code {code}"
        said = self._said.decode("utf-8", "replace").strip()
        more = f"; it said last:\n{said}" if said else ""
        return CallFailedError(f"the MCP server {self.name} {how}{more}", "transport", lost=True)

    async def end(self, seconds: float) -> None:
        """Close its input, and end it and its group where that does not. Returns within some `seconds`."""
        self.stdin.close()
        for number, patience in ((None, seconds / 2), (signal.SIGTERM, seconds / 4), (signal.SIGKILL, seconds / 4)):
            if number is not None:
                _signal_group(self._process.pid, number)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), patience)
                break
        _signal_group(self._process.pid, signal.SIGKILL)
        if self._mark:
            await asyncio.to_thread(_end_marked, self._mark)
        if self._container is not None and self._process.returncode != 0:  # else it has removed itself
            with suppress(SandboxFailure):  # what could not be removed is removed by the next run
                await asyncio.to_thread(remove_container, self._container.program, self._container.name)
        self._listening.cancel()
        self._process.let_go()

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(65_536):
            self._said = (self._said + chunk)[-KEPT:]


def _start_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None,
    mark: str,
    descriptors: Sequence[int] = (),
) -> Coroutine[Any, Any, Child]:
    ours = {name: os.environ[name] for name in _GIVEN.split() if name in os.environ}
    return started(
        command,
        cwd=cwd,
        env={**ours, **environment, MARK: mark},
        start_new_session=True,
        pass_fds=tuple(descriptors),
    )


async def _make_container(server: Server) -> Contained:
    """Raises CallFailedError where no engine has its image."""
    making = asyncio.ensure_future(asyncio.to_thread(contained, server))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_unused)
        raise
    except SandboxFailure as problem:
        raise CallFailedError(f"the MCP server {server.name}: {problem}", "environment", lost=True) from problem


def _close_unused(made: asyncio.Future[Contained]) -> None:
    """Nobody starts it any more."""
    if not made.cancelled() and made.exception() is None:
        os.close(made.result().descriptor)


async def _behind_walls(server: Server) -> Child:
    """Raises CallFailedError where there is no sandbox."""
    assert server.walls is not None
    try:
        await asyncio.to_thread(choose_mechanism, "bubblewrap")
        shown = await asyncio.to_thread(ShownFolders.of, server.walls.shown)  # however many files it has to look at
        wall = wall_program(server.command, server.walls, server.env, shown)
    except (SandboxFailure, ConfigError) as problem:
        raise CallFailedError(
            f"the MCP server {server.name} has no sandbox: {problem}", "sandbox", lost=True
        ) from problem
    settings: dict[str, Any] = {"cwd": "/", "env": {}, "start_new_session": True}
    if wall.user is not None:
        settings |= {"user": wall.user, "group": wall.user, "extra_groups": []}
    try:
        return await started(wall.argv, pass_fds=wall.descriptors, **settings)
    finally:
        for each in wall.descriptors:
            os.close(each)


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _end_marked(mark: str) -> None:
    """What bears the mark, until nothing does: each round finds what the one before was starting."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(20):
        found = [pid for pid in _list_processes() if wanted in _read_environment(pid).split(b"\0")]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _list_processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


def _read_environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
