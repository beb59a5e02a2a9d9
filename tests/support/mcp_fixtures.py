"""MCP servers for tests, started once a module, and toolsets of one attempt over them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet.schema.tool_use import ToolUse
from ajet_mcp import Limits, Server, Toolset, servers_of
from tests.mcp_servers.plain_http import PlainServer
from tests.support.ports import free_port

SERVERS = Path(__file__).parents[1] / "mcp_servers"
PLAIN = f"{{python}} -I -S {SERVERS / 'plain_stdio.py'}"
SHORT = Limits(start=60, call=60, close=2, reply_bytes=1 << 20)


@contextlib.contextmanager
def started(command: Callable[[int], list[str]]) -> Iterator[str]:
    """The address, without its path, of a server that takes a port."""
    port = free_port()
    process = subprocess.Popen(command(port), cwd=SERVERS.parents[1], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not _answers(port):
            assert process.poll() is None and time.monotonic() < end, "the server does not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def sdk_server() -> Iterator[str]:
    """The address of a server of the `mcp` package, without its path."""
    with started(lambda port: [sys.executable, "-m", "tests.mcp_servers.with_sdk", str(port)]) as address:
        yield address


def _answers(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def plain_server(request: pytest.FixtureRequest) -> Iterator[PlainServer]:
    """A server of the standard library; the parameter is its era, or its settings."""
    told = getattr(request, "param", "modern")
    server = PlainServer(**told if isinstance(told, dict) else {"era": told}).start()
    yield server
    server.shutdown()
    server.server_close()


class Attempt:
    """A toolset, and what it recorded."""

    def __init__(self, toolset: Toolset, uses: list[ToolUse]) -> None:
        self.toolset, self.uses = toolset, uses
        self.use, self.definitions = toolset.use, toolset.definitions


async def opened(*use: str | Server, limits: Limits = SHORT, **more: Any) -> Attempt:
    """One on these servers. A token is four characters."""
    uses: list[ToolUse] = []

    async def count(text: str) -> int:
        return len(text) // 4

    servers = [each for told in use for each in ([told] if isinstance(told, Server) else servers_of(told, Path.cwd()))]
    return Attempt(await Toolset.open(servers, keep=uses.append, count=count, limits=limits, **more), uses)


@contextlib.asynccontextmanager
async def attempt(*use: str | Server, **more: Any) -> AsyncIterator[Attempt]:
    """The same, closed at the end of the block."""
    found = await opened(*use, **more)
    async with found.toolset:
        yield found


@contextlib.contextmanager
def killable(era: str) -> Iterator[tuple[str, int]]:
    """A plain server in a process of its own: its address and process id."""
    command = [sys.executable, str(SERVERS / "plain_http.py"), era]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port, pid = map(int, process.stdout.readline().split())
    try:
        yield f"http://127.0.0.1:{port}/mcp", pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def lives(pid: int) -> bool:
    """Whether a process runs (one that nobody has waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
