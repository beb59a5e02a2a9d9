"""Listener: the HTTP server class of ajet (gateway, `ajet serve`, viewer), and its admission of clients.

Invariant: clients never take the last descriptors, reserved for the record. With too many connections the oldest
connection without a valid key is closed; a connection with a key is never closed in favour of another. If the system
has no descriptors left, accepting pauses, and a warning is logged once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from loguru import logger
from starlette.types import ASGIApp

from ajet.gateway.connection import Connection
from ajet.gateway.limits import ServerCounters, ServerLimits
from ajet.schema.errors import UserError

_BACKLOG = 4096
_AT_ONCE = 64
"""Connections accepted in one turn, before data of other connections is read."""
_MORE = 8
"""Connections without a key closed at a time when descriptors are scarce."""
_LAST_SECONDS = 0.1
"""Seconds for answering requests refused by the shutdown."""
_PAUSE = 1.0
"""Seconds of a pause in accepting; also the interval between two log lines about the pause."""


def listen(host: str, port: int, *, name: str, where: str) -> socket.socket:
    """Return a listening socket. Raises UserError with the server's name and the keys to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = None
    try:
        # Naming the protocol makes asyncio disable Nagle's algorithm, which would delay events by 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        if listening is not None:
            listening.close()
        reason = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise UserError(
            f"The {name} cannot listen on {host}:{port}: {reason}.", where=where, do=_way_out(error)
        ) from error
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def require_free(host: str | None, port: int, *, name: str, where: str) -> None:
    """Raise UserError if `listen` would fail. Called before a model is loaded.

    Args:
        name: Name of the server, for the error.
        where: Keys that set host and port, for the error.
    """
    listen(host or "127.0.0.1", port, name=name, where=where).close()


def _way_out(error: Exception) -> str:
    """Return what the user can do about an error of `listen`."""
    if not isinstance(error, OSError) or error.errno in (errno.EADDRINUSE, errno.EACCES):
        return "set another port, or 0: then the system chooses a free one"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (`ulimit -n`)"
    return "set an address of this machine: only this machine can reach 127.0.0.1, other machines can reach 0.0.0.0"


class Listener(uvicorn.Server):
    """Serves an app on one socket. `run` blocks.

    Setting `should_exit` ends the server after pending answers, `stop` ends it at once.
    """

    tick_seconds = 1.0
    """Seconds between two calls of `on_tick`."""
    _stop_requested: asyncio.Future[None] | None = None
    """Done once the server is to end; `None` before it serves."""

    def __init__(self, app: ASGIApp, limits: ServerLimits | None = None, **settings: Any) -> None:
        """Configure uvicorn. `settings` are further arguments of `uvicorn.Config`."""
        limits = limits or ServerLimits()
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=int(limits.idle_seconds),
                h11_max_incomplete_event_size=limits.head_bytes,
                **settings,
            )
        )
        self.shared = ServerCounters(limits)

    def stop(self) -> None:
        """Stop the server without waiting for unfinished answers. Thread-safe."""
        self.force_exit = True
        self.should_exit = True

    @property
    def should_exit(self) -> bool:
        """True once the server is to end. Setting it wakes the server. Thread-safe."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, should_exit: bool) -> None:
        self._should_exit = should_exit
        stopping = self._stop_requested
        if should_exit and stopping is not None:
            with contextlib.suppress(RuntimeError):  # the server's loop has ended
                stopping.get_loop().call_soon_threadsafe(_wake_server, stopping)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Create the acceptors, in place of uvicorn's servers."""
        _raise_descriptors()
        self._stop_requested = asyncio.get_running_loop().create_future()
        self.servers = [Acceptor(self, listening, self.shared) for listening in sockets or ()]  # type: ignore[misc]
        self.started = True

    async def main_loop(self) -> None:
        """Wait for the end with a sleeping loop. Uvicorn's own loop wakes ten times a second."""
        assert self._stop_requested is not None
        while not await self.on_tick(0):  # 0: the second's first tick, which sets the date
            await asyncio.wait([self._stop_requested], timeout=self.tick_seconds)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections. With `force_exit`, without uvicorn's fixed sleep."""
        if not self.force_exit:
            await super().shutdown(sockets)
            return
        for acceptor in self.servers:
            acceptor.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:  # requests refused by the shutdown still get their answers
            await asyncio.wait(list(self.server_state.tasks), timeout=_LAST_SECONDS)


def _wake_server(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class Acceptor:
    """Accepts the clients of one listening socket, on the server's loop."""

    def __init__(self, server: Listener, listening: socket.socket, shared: ServerCounters) -> None:
        self.shared, self._limits = shared, shared.limits
        self._server, self._listening_socket = server, listening
        self._loop = asyncio.get_running_loop()
        self._open_connections: dict[Connection, None] = {}
        self._without_key: dict[Connection, None] = {}
        self._of_address: dict[str, dict[Connection, None]] = {}
        self._handshake_tasks: set[asyncio.Task[Any]] = set()
        self._warned_at = 0.0
        self._closed = self._is_paused = False
        limits = (self._limits.head_seconds, self._limits.body_seconds, self._limits.unread_seconds)
        self._sweep_every = min(1.0, *(limit / 4 for limit in limits))
        self._loop.call_later(self._sweep_every, self._sweep_connections)
        self._loop.add_reader(listening, self._accept_clients)

    def close(self) -> None:
        """Stop accepting clients on this socket. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening_socket)

    async def wait_closed(self) -> None:
        """Do nothing: uvicorn awaits its servers with this method."""

    def forget_stranger(self, connection: Connection) -> None:
        """Stop counting the connection as a stranger, that is, as one that has shown no valid key yet."""
        # The dict's values are None, so `self` stands for "not found": a second call changes nothing.
        if self._without_key.pop(connection, self) is None:
            same_address = self._of_address[connection.address]
            del same_address[connection]
            if not same_address:
                del self._of_address[connection.address]

    def left(self, connection: Connection) -> None:
        """Remove a closed connection from all counts."""
        self.forget_stranger(connection)
        self._open_connections.pop(connection, None)

    def _accept_clients(self) -> None:
        """Accept waiting clients. At a limit, close strangers (connections without a valid key), or pause accepting."""
        for _ in range(_AT_ONCE):
            if len(self._open_connections) >= self._limits.connections and not self._evict_oldest(self._without_key):
                self._pause_accepting(f"the limit of {len(self._open_connections)} open connections is reached")
                return
            try:
                client, peer = self._listening_socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not self._make_room():
                    self._pause_accepting(str(error.strerror))
                return
            # The system assigns the lowest free descriptor, so a high number means that almost all are in use.
            scarce = client.fileno() >= self._find_first_reserved()
            if scarce and not self._make_room():
                client.close()
                self._pause_accepting(
                    "the remaining file descriptors are reserved for the run's record files (raise `ulimit -n` "
                    "for more)"
                )
                return
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            connection = Connection(self, self._server.config, self._server.server_state, self._loop, address)
            self._open_connections[connection] = self._without_key[connection] = None
            self._of_address.setdefault(address, {})[connection] = None
            task = self._loop.create_task(self._open_connection(client, connection))
            self._handshake_tasks.add(task)
            task.add_done_callback(self._handshake_tasks.discard)
            if scarce:  # the evicted connection must close before the next accept
                return

    async def _open_connection(self, client: socket.socket, connection: Connection) -> None:
        """Attach an accepted socket to its connection. Too many strangers of one address lose their oldest."""
        try:
            await self._loop.connect_accepted_socket(lambda: connection, client)
        except OSError:  # the client has left already
            client.close()
            self.left(connection)
        while len(self._of_address.get(connection.address, ())) > self._limits.strangers:
            if not self._evict_oldest(self._of_address[connection.address]):
                return

    def _evict_oldest(self, these: dict[Connection, None]) -> bool:
        """Close the oldest connection without a reply in progress.

        Args:
            these: Connections in order of arrival.

        Returns:
            False if none could be closed, because all are busy.
        """
        for connection in self._list_idle(these):
            self.left(connection)
            connection.transport.abort()
            return True
        return False

    def _make_room(self) -> bool:
        """Close several connections that have shown no valid key. Return False if none could be closed."""
        # A list, not a generator: `any` would stop after the first closed connection.
        return any([self._evict_oldest(self._without_key) for _ in range(_MORE)])

    def _list_idle(self, these: dict[Connection, None]) -> Iterator[Connection]:
        """Yield the connections that may be closed: opened completely, and without a reply in progress."""
        return (connection for connection in these if connection.transport is not None and not connection.busy)

    def _find_first_reserved(self) -> int:
        """Return the first descriptor reserved for the record. The system always assigns the lowest free descriptor."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return soft - min(self._limits.reserve, soft // 8) if soft != resource.RLIM_INFINITY else 1 << 30

    def _pause_accepting(self, why: str) -> None:
        """Stop accepting for a while. New clients wait in the system's queue."""
        now = self._loop.time()
        if now - self._warned_at >= _PAUSE or not self._warned_at:
            self._warned_at = now
            logger.warning("the server accepts no new connections for the moment: {}", why)
        if not self._is_paused:
            self._is_paused = True
            self._loop.remove_reader(self._listening_socket)
            self._loop.call_later(_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        """Accept clients again after a pause, unless the server was closed meanwhile."""
        self._is_paused = False
        if not self._closed:
            self._loop.add_reader(self._listening_socket, self._accept_clients)

    def _sweep_connections(self) -> None:
        """Close the connections that exceed a time limit, and schedule the next sweep."""
        if self._closed:
            return
        now = self._loop.time()
        for connection in list(self._open_connections):
            if connection.transport is not None:
                connection.close_overdue(now)
        self._loop.call_later(self._sweep_every, self._sweep_connections)


def _raise_descriptors() -> None:
    """Raise the limit of open files as far as the process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS refuses its own "unlimited"; the old limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
