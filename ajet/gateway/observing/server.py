"""Server: a proxy that answers, on a thread and loop of its own.

Invariant: once `stop` has returned, every call is recorded as far as it came and every session has ended.
"""

from __future__ import annotations

import asyncio
import socket
import threading

from ajet.gateway.listener import Listener
from ajet.gateway.observing.proxy import Proxy
from ajet.gateway.observing.sessions import Sessions

LOOK_S = 1.0
"""Between two looks whether sessions are idle."""


class Server:
    """The proxy on a thread and loop of its own."""

    def __init__(self, proxy: Proxy, sessions: Sessions, listening: socket.socket) -> None:
        self._proxy, self._sessions, self._listening = proxy, sessions, listening
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="ajet-observe", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """No more requests; what is under way ends, and every session with it."""
        self._listener.stop()
        self._thread.join()

    async def _serve(self) -> None:
        self._listener = Listener(self._proxy)
        looking = asyncio.ensure_future(self._look())
        self._ready.set()
        try:
            await self._listener.serve(sockets=[self._listening])
        finally:
            looking.cancel()
            await self._proxy.close()
            self._sessions.close_idle(all_of_them=True)
            self._listening.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._sessions.close_idle()
