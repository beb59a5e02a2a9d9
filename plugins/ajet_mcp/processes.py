"""The process of a server, with all processes started by it.

Invariants: the process leads its own process group, receives only the environment variables needed to start, and ends
with its group. On Linux, processes outside the group (daemons with their own session) are found by a mark in their
environment and ended too, and so is the container of an image. The last bytes of standard error are stored.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import uuid
from asyncio import BaseTransport, StreamReader, StreamReaderProtocol, StreamWriter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ajet.schema.errors import ConfigError, SandboxFailure
from ajet_mcp.contract import CallFailedError
from ajet_mcp.images import Contained, contained
from ajet_mcp.servers import Server
from ajet_sandbox.choose import choose_mechanism
from ajet_sandbox.engine import remove_container
from ajet_sandbox.program import wall_program
from ajet_sandbox.walls import ShownFolders

MARK = "AJET_TOOL_SERVER"
STDERR_BYTES = 2_000
"""Size of the stored tail of standard error."""
ENDS_S = 0.2
"""Seconds granted to a process with closed pipes to end, so that the exit code is known."""
_GIVEN = "PATH HOME USER LOGNAME SHELL LANG LC_ALL TZ TERM TMPDIR VIRTUAL_ENV LD_LIBRARY_PATH NODE_PATH SSL_CERT_FILE"


class ServerProcess:
    """A tool server running as a child process, with its pipes. Used on the tools' event loop only."""

    def __init__(self, name: str, process: Child, mark: str, container: Contained | None = None) -> None:
        """Own a started server process, and begin to read its standard error.

        Args:
            mark: value of an environment variable by which all processes of the server are found at its end.
            container: the container that the process runs in.
        """
        self.name = name
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._process = process
        self._env_mark = mark
        self._container = container
        self._stderr_tail = b""
        self.head = b""
        """The first bytes of the last line that was too long, for an error message."""
        self._stderr_task = asyncio.create_task(self._read_errors(process.stderr))

    @classmethod
    async def start(cls, server: Server) -> ServerProcess:
        """Start a server given as a command or an image, in its sandbox if it has one.

        Raises:
            CallFailedError: the server cannot be started.
        """
        mark = uuid.uuid4().hex if server.walls is None else ""  # in a sandbox all processes end with the first one
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
        """Write one line to the server.

        Raises:
            CallFailedError: the process has closed its pipes.
        """
        try:
            self.stdin.write(frame + b"\n")
            await self.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise await self.gone() from error

    async def lines(self, limit: int) -> AsyncIterator[bytes | None]:
        """Yield the lines of the server's standard output, with None in place of a too long line.

        A line longer than `limit` bytes is discarded while it arrives. `head` then holds its first 256 bytes.
        """
        partial, is_skipping = bytearray(), False
        while chunk := await self.stdout.read(1 << 18):
            *complete, unfinished = chunk.split(b"\n")
            for piece in complete:
                partial += piece
                if not is_skipping and len(partial) <= limit:
                    yield bytes(partial)
                elif not is_skipping:
                    self.head = bytes(partial[:256])
                    yield None
                partial, is_skipping = bytearray(), False
            if is_skipping:
                continue
            partial += unfinished
            if len(partial) > limit:
                self.head, partial, is_skipping = bytes(partial[:256]), bytearray(), True
                yield None

    async def gone(self) -> CallFailedError:
        """Return the error for a request to a server that closed its pipes, with the end of its stderr."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), ENDS_S)
        code = self._process.returncode
        what_happened = "closed its output" if code is None else f"ended with exit code {code}"
        output = self._stderr_tail.decode("utf-8", "replace").strip()
        stderr_note = f"; last lines of its standard error:\n{output}" if output else ""
        return CallFailedError(f"the MCP server {self.name} {what_happened}{stderr_note}", "transport", lost=True)

    async def end(self, seconds: float) -> None:
        """End the process group: close its input, then send SIGTERM, then SIGKILL.

        Args:
            seconds: approximate limit on the complete shutdown.
        """
        self.stdin.close()
        for signal_number, wait_s in (
            (None, seconds / 2),
            (signal.SIGTERM, seconds / 4),
            (signal.SIGKILL, seconds / 4),
        ):
            if signal_number is not None:
                _signal_group(self._process.pid, signal_number)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), wait_s)
                break
        _signal_group(self._process.pid, signal.SIGKILL)
        if self._env_mark:
            await asyncio.to_thread(_end_marked, self._env_mark)
        # A container that ended with code 0 has removed itself.
        if self._container is not None and self._process.returncode != 0:
            with suppress(SandboxFailure):  # the next run removes a remaining container
                await asyncio.to_thread(remove_container, self._container.program, self._container.name)
        self._stderr_task.cancel()
        self._process.let_go()

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        """Read standard error until its end, and keep the last STDERR_BYTES bytes."""
        while chunk := await stream.read(65_536):
            self._stderr_tail = (self._stderr_tail + chunk)[-STDERR_BYTES:]


def _start_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None,
    mark: str,
    descriptors: Sequence[int] = (),
) -> Coroutine[Any, Any, Child]:
    """Return a coroutine that starts a command in its own process group.

    Args:
        environment: the server's variables, added to the few inherited ones of `_GIVEN`.
        mark: value of the variable MARK, by which all processes of the server are found later.
        descriptors: descriptors that the process inherits.
    """
    inherited = {name: os.environ[name] for name in _GIVEN.split() if name in os.environ}
    return started(
        command,
        cwd=cwd,
        env={**inherited, **environment, MARK: mark},
        start_new_session=True,
        pass_fds=tuple(descriptors),
    )


async def _make_container(server: Server) -> Contained:
    """Build the container command in a thread.

    Raises:
        CallFailedError: no engine has the image.
    """
    making = asyncio.ensure_future(asyncio.to_thread(contained, server))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_unused)  # the thread cannot be cancelled, so its result is closed later
        raise
    except SandboxFailure as problem:
        raise CallFailedError(f"the MCP server {server.name}: {problem}", "environment", lost=True) from problem


def _close_unused(future: asyncio.Future[Contained]) -> None:
    """Close the descriptor of a container command whose start was cancelled meanwhile."""
    if not future.cancelled() and future.exception() is None:
        os.close(future.result().descriptor)


async def _behind_walls(server: Server) -> Child:
    """Start a confined server in its sandbox.

    Raises:
        CallFailedError: this machine has no sandbox.
    """
    assert server.walls is not None
    try:
        await asyncio.to_thread(choose_mechanism, "bubblewrap")
        # The scan of the folders runs in a thread, because it may take long.
        readable = await asyncio.to_thread(ShownFolders.of, server.walls.shown)
        program = wall_program(server.command, server.walls, server.env, readable)
    except (SandboxFailure, ConfigError) as problem:
        raise CallFailedError(
            f"the MCP server {server.name} cannot get its sandbox: {problem}", "sandbox", lost=True
        ) from problem
    popen_settings: dict[str, Any] = {"cwd": "/", "env": {}, "start_new_session": True}
    if program.user is not None:
        popen_settings |= {"user": program.user, "group": program.user, "extra_groups": []}
    try:
        return await started(program.argv, pass_fds=program.descriptors, **popen_settings)
    finally:
        for descriptor in program.descriptors:
            os.close(descriptor)


def _signal_group(leader: int, signal_number: int) -> None:
    """Send a signal to a process group, unless it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal_number)


def _end_marked(mark: str) -> None:
    """Kill all processes whose environment contains the mark, until none is found.

    The mark finds daemons that left the process group. Each round finds children started during the round before.
    """
    variable = f"{MARK}={mark}".encode()
    for _ in range(20):
        pids = [pid for pid in _list_processes() if variable in _read_environment(pid).split(b"\0")]
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return


def _list_processes() -> list[int]:
    """Return all process ids of the machine, or [] without /proc (not Linux)."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []


def _read_environment(pid: int) -> bytes:
    """Return the environment of a process as in /proc, or b"" if it has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


# A child process with three pipes, used from an event loop.
# Invariant: on every event loop the child inherits its three pipes and the given descriptors, and no others. uvloop
# starts processes on sockets instead. A program cannot open a socket by name (`/dev/stderr`). A grandchild also
# keeps a copy of the sockets, so the output stays open and the death of the child stays unnoticed.
class Child:
    """A child process started by `started`, with its pipes on one event loop."""

    stdin: StreamWriter
    stdout: StreamReader
    stderr: StreamReader

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._has_ended = asyncio.Event()
        self._loop, self._pipes = asyncio.get_running_loop(), list[BaseTransport]()
        threading.Thread(target=self._wait_for_exit, name=f"waits for {process.pid}", daemon=True).start()

    @property
    def returncode(self) -> int | None:
        """The exit code as in `subprocess`; None while the process runs."""
        return self._process.returncode if self._has_ended.is_set() else None

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._has_ended.wait()

    def let_go(self) -> None:
        """Close this side of the pipes, even if another process still holds the other ends."""
        for pipe in self._pipes:
            pipe.close()

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
        """Connect one output pipe to the event loop and return its reader."""
        reader = StreamReader()
        transport, _ = await self._loop.connect_read_pipe(lambda: StreamReaderProtocol(reader), pipe)
        self._pipes.append(transport)
        return reader

    def _wait_for_exit(self) -> None:
        """Wait for the process in a thread, and report its end to the event loop."""
        self._process.wait()
        with suppress(RuntimeError):  # the loop is closed, without waiters
            self._loop.call_soon_threadsafe(self._has_ended.set)


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
