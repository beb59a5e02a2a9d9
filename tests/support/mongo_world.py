"""What happens to a server of MongoDB and to the way there: connections are cut within a message, the server is killed
and started again over its files, or stopped for a while.

Real: server, sockets, files. The moments are drawn, and what the server is at then is its own affair: what a test holds
must hold at any.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable

from pymongo import MongoClient

from tests.support.mongod import Mongod

STATES = {"waiting": "waiting", "running": "leased", "completed": "closed", "over": "over", "dead": "dead"}


class Way:
    """An address on this machine that leads to a server's port; a context manager. `cut` breaks what goes over it."""

    def __init__(self, port: int) -> None:
        self._to, self._left, self._lock = port, -1, threading.Lock()
        self._open: set[socket.socket] = set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._let_in, daemon=True).start()

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()
        self.cut(0)

    def cut(self, after: int) -> None:
        """End all connections when so many bytes more have come over them."""
        with self._lock:
            self._left = after
        if not after:
            self._end_all()

    def _let_in(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the server is being started
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                cut, data = self._counted(data)
                other.sendall(data)
                if cut:
                    self._end_all()
        self._end({one, other})

    def _counted(self, data: bytes) -> tuple[bool, bytes]:
        with self._lock:
            if self._left < 0 or len(data) < self._left:
                self._left = max(-1, self._left - len(data)) if self._left >= 0 else -1
                return False, data
            part, self._left = data[: self._left], -1
            return True, part

    def _end_all(self) -> None:
        with self._lock:
            these = set(self._open)
        self._end(these)

    def _end(self, these: set[socket.socket]) -> None:
        with self._lock:
            self._open -= these
        for each in these:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class MongoGround:
    """An empty store at a server, over a way that is cut. See `store_world.Ground`."""

    def __init__(self, mongod: Mongod, way: Way, draw: random.Random) -> None:
        self._mongod, self._way, self._draw = mongod, way, draw
        mongod.empty()
        self.address = f"mongodb://127.0.0.1:{way.port}/ajet"
        self._client: MongoClient = MongoClient(mongod.uri)
        self._under_way: threading.Thread | None = None

    def later(self, seconds: float) -> None:
        self.settle()
        self._mongod.later(seconds)

    def states(self) -> dict[int, str]:
        had = {"status": {"$nin": ["made", "free"]}}
        return {each["_id"]: STATES[each["status"]] for each in self._client["ajet"]["Task"].find(had)}

    def happens(self) -> dict[str, tuple[float, Callable[[], None]]]:
        """To it."""
        return {
            "connections cut": (2.0, lambda: self._way.cut(self._draw.randrange(1, 4000))),
            "mongod killed": (0.15, lambda: self._soon(self._killed)),
            "mongod stopped": (0.3, lambda: self._soon(self._stopped)),
        }

    def settle(self) -> None:
        """Wait until the server is as it was."""
        if self._under_way is not None:
            self._under_way.join()
            self._under_way = None

    def close(self) -> None:
        """The server is as it was."""
        self.settle()
        self._client.close()

    def _soon(self, happens: Callable[[float], None]) -> None:
        """Beside what is asked of the server meanwhile."""
        self.settle()
        self._under_way = threading.Thread(target=happens, args=(self._draw.uniform(0, 0.02),))
        self._under_way.start()

    def _killed(self, after: float) -> None:
        threading.Event().wait(after)
        self._mongod.kill()
        self._mongod.start()

    def _stopped(self, after: float) -> None:
        threading.Event().wait(after)
        os.kill(self._mongod.pid, signal.SIGSTOP)
        threading.Event().wait(0.3)
        os.kill(self._mongod.pid, signal.SIGCONT)
