"""The process of an environment: its servers, and the front before them. One argument: JSON of file, host, port, token
(whether there is one; MCP_SERVER_TOKEN says which, else it is drawn).

Invariant: its state is written when every server has answered, and forgotten when it ends; SIGTERM drains it; whatever
its servers started ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import psutil
from starlette.types import ASGIApp

from ajet.environment.family import adopt_orphans, end_descendants
from ajet.gateway.limits import admitting
from ajet.gateway.listener import Listener, listen
from ajet.record.process_identity import ProcessIdentity
from ajet.schema.addresses import is_loopback, loopback_hosts
from ajet.schema.errors import BoundaryError, UserError
from ajet.train.interrupts import end_on_hangup
from ajet_environments.deployment import Description, Part, RunningEnvironment, described
from ajet_environments.deployment.instances import starter
from ajet_environments.deployment.workdirs import Workdirs
from ajet_environments.front import Episodes, Front, build_front
from ajet_environments.front.app import Access
from ajet_environments.front.servers import Pool
from ajet_mcp.servers import TOKEN

WISHED_PORT = 8000
"""Taken if it is free: what AWorld's and AgentRL's pages print."""


def main() -> int:
    return run(**json.loads(sys.argv[1]))


def run(*, file: str, host: str, port: int | None, token: bool, drain: float = 0.0, address: str = "") -> int:
    """Until a signal asks for the end; answers the exit code. `drain`: seconds that open episodes then still have;
    `address`: under which clients find this one of several, without its port."""
    adopt_orphans()
    end_on_hangup()
    signal.signal(signal.SIGTERM, _ended)  # the listener puts its own in its place while it serves
    try:
        description = described(Path(file))
        if suits_uvloop(description):
            import uvloop

            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.run(serve(description, host=host, port=port, token=token, drain=drain, address=address))
    except (UserError, BoundaryError) as problem:
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
        return 2
    finally:
        end_descendants(psutil.Process())
    return 0


def suits_uvloop(description: Description) -> bool:
    """Whether it is served on uvloop, where a call costs less: it must be installed, and starts no process as another
    user, as those behind walls are."""
    walled = any(part.start is not None or (part.server and part.server.confined) for part in description.parts)
    return not walled and find_spec("uvloop") is not None


def _ended(*_: object) -> None:
    """Before there is anything to drain, and once all is drained."""
    raise SystemExit


async def serve(
    description: Description, *, host: str, port: int | None, token: bool, drain: float = 0.0, address: str = ""
) -> None:
    """Until a signal asks for the end. Raises UserError; BoundaryError for a server that does not start."""
    listening = listening_at(host, port)
    taken = int(listening.getsockname()[1])
    key = (os.environ.get(TOKEN) or secrets.token_urlsafe(24)) if token else ""
    workdirs = Workdirs()
    servers = [server_of(part, workdirs) for part in description.parts]
    episodes = Episodes(
        servers,
        capacity=description.capacity,
        idle=description.idle,
        tools=description.tools,
        ended=workdirs.remove,
    )
    access = Access(key, loopback_hosts(host, taken) if is_loopback(host) else None)
    own = f"http://{address}:{taken}" if address else ""
    front = Front(description.name, episodes, access, description.aliases, own)
    state = RunningEnvironment(
        description.name, host, taken, key, ProcessIdentity.of(os.getpid()), str(description.file)
    )
    try:
        await episodes.open()
        front.start()
        state.write()
        with suppress(SystemExit):
            await Draining(admitting(build_front(front)), episodes, drain).serve(sockets=[listening])
    finally:
        state.forget()
        await front.close()
        workdirs.close()


class Draining(Listener):
    """A listener whom the first SIGTERM tells to take no new episode; it ends when the open ones are over, or `seconds`
    later."""

    tick_seconds = 0.1

    def __init__(self, app: ASGIApp, episodes: Episodes, seconds: float) -> None:
        super().__init__(app)
        self._episodes, self._seconds, self._until = episodes, seconds, 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn."""
        if sig == signal.SIGTERM and self._seconds and not self._until:
            self._episodes.draining = True
            self._until = time.monotonic() + self._seconds
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn."""
        if self._until and (not len(self._episodes) or time.monotonic() > self._until):
            self.should_exit = True
        return await super().on_tick(counter)


def server_of(part: Part, workdirs: Workdirs) -> Pool:
    """A part, as the front has it."""
    return Pool(
        part.name,
        starter(part, workdirs),
        part.per,
        part.spare,
        part.limit,
        part.reset,
        part.off,
        tools=part.tools,
        patience=part.seconds,
    )


def listening_at(host: str, port: int | None) -> socket.socket:
    """A socket there; without a port at the one that pages print, or else at a free one. Raises UserError."""
    if port is not None:
        return listen(host, port, name="environment", where="--host, --port")
    try:
        return listen(host, WISHED_PORT, name="environment", where="--host")
    except UserError:
        return listen(host, 0, name="environment", where="--host")


if __name__ == "__main__":
    sys.exit(main())
