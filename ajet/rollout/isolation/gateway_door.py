"""The gateway's door in a sandbox: a Unix socket, the only thing inside that leads out, and behind it the gateway.

Invariant: what goes through the door reaches the gateway's address and nothing else. Inside, a forwarder that cannot be
told from a server listens on loopback, so that any client finds it by an ordinary URL. Run by its path, this file is
the first program inside (no package of ours is needed): it takes on its user and limits, forks the forwarder, and
becomes the command that it was given.
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

TYPE_CHECKING = False  # what `typing` would bring takes longer than the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PORT = 47_080
"""Where clients inside find the gateway, on 127.0.0.1."""
PIECE = 1 << 16
DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG."""


def forwarding(
    connect: Callable[[], Coroutine[Any, Any, Streams]],
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
    """For `asyncio.start_server`: each connection goes on over one that `connect` makes."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await connect()
        except OSError:
            writer.close()
            return
        await asyncio.gather(_carry(reader, back), _carry(there, writer))

    return forward


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass  # one side is gone: so is the other now
    finally:
        writer.close()


def main() -> None:
    """The first program inside; its argument is JSON."""
    told = json.loads(sys.argv[1])
    if told["uid"] is not None:
        os.setgroups([])
        os.setresgid(told["uid"], told["uid"], told["uid"])
        os.setresuid(told["uid"], told["uid"], told["uid"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (told["files"], told["files"]))
    if told["processes"]:
        resource.setrlimit(resource.RLIMIT_NPROC, (told["processes"], told["processes"]))
    listening = socket.create_server(("127.0.0.1", PORT), backlog=128)
    if os.fork() == 0:
        _forward_for_ever(listening, told)
    listening.close()
    os.execv(told["command"][0], told["command"])


def _forward_for_ever(listening: socket.socket, told: Mapping[str, Any]) -> None:
    """It holds none of the descriptors that the command was given, and ends with it."""
    try:
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
        number = os.dup2(listening.detach(), 3)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        os.closerange(4, told["files"])
        asyncio.run(_serve(socket.socket(fileno=number), told["door"]))
    finally:
        os._exit(0)


async def _serve(listening: socket.socket, door: str) -> None:
    server = await asyncio.start_server(forwarding(lambda: asyncio.open_unix_connection(door)), sock=listening)
    await server.serve_forever()


if __name__ == "__main__":
    main()
