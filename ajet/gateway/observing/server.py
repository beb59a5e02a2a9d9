"""Server: a proxy that answers, on a thread and loop of its own.

Invariant: once `stop` has returned, every call is recorded as far as it came and every session has ended.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing

from ajet.gateway.listener import Listener
from ajet.gateway.observing.proxy import Proxy
from ajet.gateway.observing.sessions import Sessions
from ajet.gateway.server_thread import start_server

LOOK_S = 1.0
"""Between two looks whether sessions are idle."""


class Server:
    """The proxy on a thread and loop of its own."""

    def __init__(self, proxy: Proxy, sessions: Sessions, listening: socket.socket) -> None:
        self._proxy, self._sessions, self._listening = proxy, sessions, listening
        self._thread = start_server(self._run, name="ajet-observe")

    @property
    def idle(self) -> bool:
        """Nobody is being answered."""
        return self._proxy.idle

    def stop(self) -> None:
        """No more requests; what is under way ends, and every session with it."""
        self._listener.stop()
        self._thread.join()

    def _run(self, started: Callable[[], None]) -> None:
        with closing(self._listening), closing(self._serve(started)) as serving:  # it never begins without a loop
            asyncio.run(serving)

    async def _serve(self, started: Callable[[], None]) -> None:
        self._listener = Listener(self._proxy)
        looking = asyncio.ensure_future(self._look())
        started()
        try:
            await self._listener.serve(sockets=[self._listening])
        finally:
            looking.cancel()
            await self._proxy.close()
            self._sessions.close_idle(all_of_them=True)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._sessions.close_idle()
