"""The door: a Unix socket that is a sandbox's only connection to the outside, in one direction.

Outward it leads to the gateway (ajet's model server): a forwarder inside listens on loopback, so any client reaches the
gateway by an ordinary URL. Inward it leads to the single port of a service: a forwarder accepts at a socket created on
the host, once the program answers at its port. Invariant: neither direction opens the other. The file is run by path,
as the first program inside (without any package of ajet) or the second. It sets user and limits if they are given,
forks the forwarder, and then executes the command in its place.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import socket
import sys

TYPE_CHECKING = False  # importing `typing` takes longer than the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PORT = 47_080
"""The gateway's port for clients inside, on 127.0.0.1."""
PIECE = 1 << 16
POLL_S = 0.1
"""Seconds between two probes of a service."""
DEATH_SIGNAL = 1
"""The option PR_SET_PDEATHSIG of prctl."""


def make_forwarder(
    connect: Callable[[], Coroutine[Any, Any, Streams]],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
    """Return a handler for `asyncio.start_server` that forwards each accepted connection.

    Args:
        connect: opens the other connection.
    """

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes in both directions between an accepted connection and a new one, until both end."""
        try:
            other_reader, other_writer = await connect()
            await asyncio.gather(_copy_stream(reader, other_writer), _copy_stream(other_reader, writer))
        except OSError:
            writer.close()
        except asyncio.CancelledError:  # the server closes; before Python 3.12 asyncio logs that as an unhandled error
            writer.close()

    return forward


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes from one connection to the other until the first ends, then close the other."""
    try:
        while chunk := await reader.read(PIECE):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass  # one side has closed, so the other is closed, too
    finally:
        writer.close()


def main() -> None:
    """Read the settings, set user and limits, fork the forwarder, and execute the command in this process.

    The settings are the JSON argument.
    """
    settings = json.loads(sys.argv[1])
    if settings.get("uid") is not None:
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    limits = {"CORE": 0, "NOFILE": settings.get("files"), "NPROC": settings.get("processes") or None}
    for name, limit in limits.items():
        if limit is not None:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    serves_program = "port" in settings
    if serves_program:
        listener = socket.socket(fileno=settings["listening"])
    else:
        listener = socket.create_server(("127.0.0.1", PORT), backlog=128)
    if os.fork() == 0:
        _forward_forever(listener, settings)
    listener.close()
    if serves_program:
        os.close(settings["ready_fd"])
    os.chdir(settings["folder"])
    if settings.get("projects"):
        from ajet_sandbox.inside.open_rule import restrict_opening

        restrict_opening(settings["projects"])
    os.execvp(settings["command"][0], settings["command"])


def _forward_forever(listening: socket.socket, settings: Mapping[str, Any]) -> None:
    """Forward connections in this forked process until the command ends, then exit. Never returns.

    It keeps only the descriptors 3 (`listening`) and 4 (`ready_fd`, if given), and none of the command's.

    Args:
        listening: the socket that accepts connections.
        settings: the program's settings; with `port` the door leads to a service inside, else to the gateway.
    """
    try:
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
        descriptors = [listening.detach(), *([settings["ready_fd"]] if "ready_fd" in settings else [])]
        # The copies have ascending numbers, so that `dup2` overwrites none before it is read.
        descriptors = [os.dup(descriptor) for descriptor in descriptors]
        for target_fd, descriptor in enumerate(descriptors, 3):
            os.dup2(descriptor, target_fd)
        null_fd = os.open(os.devnull, os.O_RDWR)
        for standard_fd in (0, 1, 2):
            os.dup2(null_fd, standard_fd)
        os.closerange(3 + len(descriptors), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        asyncio.run(_serve_program(settings["port"]) if "port" in settings else _serve_gateway(settings["door"]))
    finally:
        os._exit(0)


async def _serve_gateway(door: str) -> None:
    """Accept connections at descriptor 3 and forward them to the socket `door`, which leads to the gateway."""
    forward = make_forwarder(lambda: asyncio.open_unix_connection(door))
    server = await asyncio.start_server(forward, sock=socket.socket(fileno=3))
    await server.serve_forever()


async def _serve_program(port: int) -> None:
    """Wait until the program inside accepts connections at its port, report that, then forward connections to it.

    Connections arrive at descriptor 3; a byte on descriptor 4 tells the host that the program is ready.
    """

    def connect() -> Coroutine[Any, Any, Streams]:
        return asyncio.open_connection("127.0.0.1", port)

    while True:
        try:
            _, writer = await connect()
        except OSError:
            await asyncio.sleep(POLL_S)
        else:
            writer.close()
            break
    os.write(4, b"!")
    os.close(4)
    server = await asyncio.start_unix_server(make_forwarder(connect), sock=socket.socket(fileno=3))
    await server.serve_forever()


if __name__ == "__main__":
    main()
