"""The process of an environment: starts its tool servers and serves them at one HTTP address.

The process gets one argument: JSON with file, host, port and token (True if a token is required: MCP_SERVER_TOKEN, else
a random one). Invariants: the state file is written when every server has answered, and removed at the end. After
SIGTERM open episodes may finish. All child processes end with this one.
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
from ajet.schema.addresses import is_loopback, list_loopback_hosts
from ajet.schema.errors import BoundaryError, UserError
from ajet.train.interrupts import end_on_hangup
from ajet_environments.deployment import EnvironmentDescription, EnvironmentPart, RunningEnvironment, read_description
from ajet_environments.deployment.instances import make_starter
from ajet_environments.deployment.workdirs import Workdirs
from ajet_environments.front import Front, FrontEpisodes, build_front
from ajet_environments.front.app import AccessRule
from ajet_environments.front.servers import InstancePool
from ajet_mcp.servers import TOKEN

DEFAULT_PORT = 8000
"""Used if free, as on AWorld's and AgentRL's pages."""


def main() -> int:
    return run_environment(**json.loads(sys.argv[1]))


def run_environment(
    *, file: str, host: str, port: int | None, token: bool, drain: float = 0.0, address: str = ""
) -> int:
    """Serve an environment in this process until a signal, and return the exit code: 0, or 2 if it cannot start.

    Args:
        file: path of the environment's YAML file.
        port: None for the default port, or else a free one.
        token: True if clients need the token.
        drain: seconds for open episodes to end after SIGTERM.
        address: host name of exactly this process, without port, if several share one address; else "".
    """
    adopt_orphans()
    end_on_hangup()
    signal.signal(signal.SIGTERM, _raise_exit)  # replaced by the HTTP server's handler while it serves
    try:
        description = read_description(Path(file))
        if can_use_uvloop(description):
            import uvloop

            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        asyncio.run(serve_environment(description, host=host, port=port, token=token, drain=drain, address=address))
    except (UserError, BoundaryError) as problem:
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
        return 2
    finally:
        end_descendants(psutil.Process())
    return 0


def can_use_uvloop(description: EnvironmentDescription) -> bool:
    """True if uvloop, which makes a call cheaper, is installed and can start all servers.

    uvloop cannot start a process as another user, which sandboxed servers and parts with a `start` of their own need.
    """
    changes_user = any(part.start is not None or (part.server and part.server.confined) for part in description.parts)
    return not changes_user and find_spec("uvloop") is not None


def _raise_exit(*_: object) -> None:
    """Exit on SIGTERM before there is anything to drain, and after draining."""
    raise SystemExit


async def serve_environment(
    description: EnvironmentDescription,
    *,
    host: str,
    port: int | None,
    token: bool,
    drain: float = 0.0,
    address: str = "",
) -> None:
    """Start the servers and serve HTTP until a signal.

    Args:
        port: None for the default port, or else a free one.
        token: False to accept clients without a token.
        drain: seconds for open episodes to end after SIGTERM.
        address: host name of exactly this process, if several share one address.

    Raises:
        UserError: the port or the description cannot be used.
        BoundaryError: a server does not start.
    """
    listening = open_listener(host, port)
    free_port = int(listening.getsockname()[1])
    key = (os.environ.get(TOKEN) or secrets.token_urlsafe(24)) if token else ""
    workdirs = Workdirs()
    servers = [build_pool(part, workdirs) for part in description.parts]
    episodes = FrontEpisodes(
        servers,
        capacity=description.capacity,
        idle=description.idle,
        tools=description.tools,
        on_ended=workdirs.remove,
    )
    access = AccessRule(key, list_loopback_hosts(host, free_port) if is_loopback(host) else None)
    own_url = f"http://{address}:{free_port}" if address else ""
    front = Front(description.name, episodes, access, description.aliases, own_url)
    state = RunningEnvironment(
        description.name, host, free_port, key, ProcessIdentity.of(os.getpid()), str(description.file)
    )
    try:
        await episodes.open()
        front.start()
        state.write()
        with suppress(SystemExit):
            await DrainingListener(admitting(build_front(front)), episodes, drain).serve(sockets=[listening])
    finally:
        state.forget()
        await front.close()
        workdirs.close()


class DrainingListener(Listener):
    """An HTTP server that drains at the first SIGTERM: it refuses new episodes and waits for open ones.

    It waits at most `seconds`. A second signal ends it at once.
    """

    tick_seconds = 0.1

    def __init__(self, app: ASGIApp, episodes: FrontEpisodes, seconds: float) -> None:
        super().__init__(app)
        self._episodes = episodes
        self._seconds = seconds
        self._drain_end = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining at the first SIGTERM. End the server at any other signal, or without a drain time."""
        if sig == signal.SIGTERM and self._seconds and not self._drain_end:
            self._episodes.is_draining = True
            self._drain_end = time.monotonic() + self._seconds
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """End the server once no episode is open or the drain time has passed. Return True to end it."""
        if self._drain_end and (not len(self._episodes) or time.monotonic() > self._drain_end):
            self.should_exit = True
        return await super().on_tick(counter)


def build_pool(part: EnvironmentPart, workdirs: Workdirs) -> InstancePool:
    """Build the pool of instances of one server."""
    return InstancePool(
        part.name,
        make_starter(part, workdirs),
        part.per,
        part.spare,
        part.limit,
        part.reset,
        part.off,
        tools=part.tools,
        patience=part.seconds,
    )


def open_listener(host: str, port: int | None) -> socket.socket:
    """Open a listening socket at the port; without one, at the default port or else at a free port.

    Raises:
        UserError: the address or port cannot be used.
    """
    if port is not None:
        return listen(host, port, name="environment", where="--host, --port")
    try:
        return listen(host, DEFAULT_PORT, name="environment", where="--host")
    except UserError:
        return listen(host, 0, name="environment", where="--host")


if __name__ == "__main__":
    sys.exit(main())
