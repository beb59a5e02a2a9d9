"""Memory that no process maps counts, with a control group and without one. Each way to take it is an attack of
`plugins/ajet_sandbox/tests/test_sandbox_attacks.py`; these are the ways around what counts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ajet.schema.sandbox import Limits
from ajet_sandbox.cgroup import ControlGroup
from ajet_sandbox.choose import open_sandbox
from ajet_sandbox.warm import WarmSandbox
from tests.support.sandbox_fixtures import require

MIB = 1 << 20
LIMITS = Limits(wall=20, cpu=10, memory=96 * MIB, processes=24, files=64, disk=16 * MIB)
MEMFDS = """
import os, time
kept = [os.memfd_create("x") for _ in range(4)]
for each in kept:
    for _ in range(8):
        os.write(each, bytes(1 << 20))
time.sleep(1)
"""
HIDES = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
print(libc.prctl(4, 0, 0, 0, 0))
"""
GROWS = """
import socket
ours, theirs = socket.socketpair()
before = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
ours.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
print(ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before)
print(ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
"""
CONNECTIONS = """
import os, socket, time
listening = socket.create_server(("127.0.0.1", 0), backlog=100)
kept = []
for _ in range(28):
    ours = socket.create_connection(listening.getsockname())
    kept += [ours, listening.accept()[0]]
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        pass
time.sleep(1)
"""


@pytest.fixture(params=["bubblewrap", "landlock"])
def watched(request: pytest.FixtureRequest) -> Iterator[WarmSandbox]:
    """A sandbox without a control group."""
    require(request.param)
    box = open_sandbox(request.param, LIMITS, cgroups=False)
    yield box
    box.close()


def test_process_cannot_hide_from_watch(watched: WarmSandbox) -> None:
    assert watched.python(HIDES).stdout == b"-1\n"


def test_socket_buffers_do_not_grow_where_counted(watched: WarmSandbox) -> None:
    done = watched.python(GROWS)
    assert done.stdout == b"True\n1\n", done.stderr


def test_full_connections_count_as_memory(watched: WarmSandbox) -> None:
    if watched.mechanism == "landlock":
        pytest.skip("it has no connections")
    assert watched.python(CONNECTIONS).ended == "memory"


def test_usual_programs_run_where_counted(watched: WarmSandbox) -> None:
    loop = "import asyncio, subprocess\nasyncio.run(asyncio.sleep(0))\nprint(subprocess.check_output(['echo', 'x']))"
    many = "from multiprocessing import Pool\nwith Pool(4) as pool: print(sum(pool.map(abs, range(-9, 1))))"
    assert watched.python(loop).good
    if watched.mechanism != "landlock":  # whose filter refuses what a pool's locks need
        roomy = replace(LIMITS, memory=400 * MIB)  # a thread's stack counts as addresses
        assert watched.python(many, limits=roomy).stdout == b"45\n"


def test_control_group_that_takes_nobody_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a user's own, into which a process of another session cannot be moved."""
    require("landlock")

    def refuses(self: ControlGroup, pid: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ControlGroup, "add_process", refuses)
    box = open_sandbox("landlock", LIMITS)
    try:
        assert not box.is_memory_held
        assert box.python(MEMFDS).ended == "exit" and b"not implemented" in box.python(MEMFDS).stderr
    finally:
        box.close()


def test_smaller_limit_of_one_call_counts_memfds() -> None:
    require("bubblewrap")
    box = open_sandbox("bubblewrap", LIMITS)
    try:
        if not box.is_memory_held:
            pytest.skip("no control group here")
        small = Limits(wall=20, cpu=10, memory=24 * MIB, processes=24, files=64, disk=16 * MIB)
        assert box.python(MEMFDS, limits=small).ended == "memory"
    finally:
        box.close()
