"""RelayServer: an observing relay with its own thread and loop.

Invariant: once `stop` has returned, every call is recorded as far as it was received, and every session has ended.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing

from ajet.gateway.listener import Listener
from ajet.gateway.server_thread import start_server
from ajet_observe.relay import ObservingRelay
from ajet_observe.sessions import ObservedSessions

_CHECK_EVERY_S = 1.0
"""Seconds between two checks for idle sessions."""


class RelayServer:
    """Serves a relay until `stop` is called."""

    def __init__(self, relay: ObservingRelay, sessions: ObservedSessions, listening: socket.socket) -> None:
        """Start serving on a socket that listens already, in a thread of its own."""
        self._relay = relay
        self._sessions = sessions
        self._listening_socket = listening
        self._thread = start_server(self._run_loop, name="ajet-observe")

    @property
    def idle(self) -> bool:
        """True if no request is in progress."""
        return self._relay.idle

    def stop(self) -> None:
        """Stop serving. Requests in progress and all sessions end."""
        self._listener.stop()
        self._thread.join()

    def _run_loop(self, started: Callable[[], None]) -> None:
        """Run the event loop of the server's thread. `started` is called once requests can be served."""
        # The coroutine is closed explicitly: it never begins if the loop cannot be made.
        with (
            closing(self._listening_socket),
            closing(self._serve_requests(started)) as serving,
        ):
            asyncio.run(serving)

    async def _serve_requests(self, started: Callable[[], None]) -> None:
        """Serve requests until `stop`, then end all requests and all sessions."""
        self._listener = Listener(self._relay)
        idle_check = asyncio.ensure_future(self._close_idle_sessions())
        started()
        try:
            await self._listener.serve(sockets=[self._listening_socket])
        finally:
            idle_check.cancel()
            await self._relay.close()
            self._sessions.close_idle(all_of_them=True)

    async def _close_idle_sessions(self) -> None:
        """End idle sessions every _CHECK_EVERY_S seconds."""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            self._sessions.close_idle()
