"""`ajet env serve`, and a private environment server in a thread of the training run.

Invariant: the service listens on loopback by default, prints its address once it answers, and releases all instances at
its end.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
from concurrent import futures
from pathlib import Path

from loguru import logger

from ajet.environment.services.chosen import ChosenEnvironment
from ajet.environment.services.wire import TOKEN, EnvService
from ajet.schema.addresses import require_key_or_loopback
from ajet.schema.errors import UserError
from ajet_environments.services.hosted import World
from ajet_environments.services.server import END_S, IDLE_S, WorldServer
from ajet_environments.services.sources import open_world


def serve_world(
    source: str, *, host: str, port: int, instances: int, idle_s: float, tasks: int, data: Path | None
) -> int:
    """Serve an environment until SIGINT, SIGTERM or SIGHUP, and return the exit code.

    Args:
        source: the environment, as `open_world` accepts it.
        instances: largest number of concurrent instances.
        idle_s: seconds without a request after which an instance is released.
        tasks: number of training tasks if the environment lists none.
        data: JSON Lines file of tasks, for skyrl and nemo_gym.

    Raises:
        UserError: the environment or the port cannot be used.
    """
    token = os.environ.get(TOKEN)
    require_key_or_loopback(
        host,
        keyed=bool(token),
        name="environment service",
        do=f"set {TOKEN} for the service and for the run that uses it",
    )
    world = open_world(source, base=Path.cwd(), tasks=tasks, data=data)
    asyncio.run(serve_until_signal(WorldServer(world, instances=instances, idle_s=idle_s, token=token), host, port))
    return 0


async def serve_until_signal(server: WorldServer, host: str, port: int) -> None:
    """Listen, print the address, and serve until SIGINT, SIGTERM or SIGHUP; then release all instances.

    Raises:
        UserError: the address or port cannot be used.
    """
    stopped = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signal_number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, which stays ignored
            asyncio.get_running_loop().add_signal_handler(signal_number, stopped.set)
    try:
        bound = await server.start(host, port)
    except (OSError, OverflowError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "a port is a number from 0 to 65535"
        raise UserError(
            f"The environment service cannot listen on {host}:{port}: {reason}.",
            where="--host, --port",
            do="omit --port: then the system chooses a free one",
        ) from None
    print(f"Serving {server.world.name} at http://{host}:{bound} (press Ctrl-C to stop)", flush=True)
    await stopped.wait()
    await server.close()


class LocalWorldService:
    """Serves an environment to this process only: in a thread, on loopback, with a random token."""

    def __init__(self, world: World, *, instances: int = 1 << 16, idle_s: float = IDLE_S) -> None:
        token = secrets.token_hex(16)
        self.server = WorldServer(world, instances=instances, idle_s=idle_s, token=token)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ajet-worlds", daemon=True)
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self.server.start("127.0.0.1", 0), self._loop).result()
        self.service = EnvService(f"http://127.0.0.1:{port}", world.name, token=token)
        """The client of the service."""

    def close(self) -> None:
        """Release all instances. Hanging environment code ends only with this process. Idempotent."""
        if not self._thread.is_alive():
            return
        closing = asyncio.run_coroutine_threadsafe(self.server.close(), self._loop)
        try:
            closing.result(END_S)
        except futures.TimeoutError:
            logger.warning(
                "the environment {}: not all instances could be closed within {:g} s", self.service.env_type, END_S
            )
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()


def serve_locally(environment_use: str, base: Path) -> ChosenEnvironment:
    """Start a private server for the environment class named by `environment.use`, and return its client.

    Args:
        environment_use: value of `environment.use`.
        base: folder for relative paths.

    Raises:
        UserError: the environment cannot be opened.
    """
    local = LocalWorldService(open_world(environment_use, base=base))
    return ChosenEnvironment(local.service, leave=local.close)
