"""What a server of ours bears from its clients, and the counters that are shared by all of its connections.

Invariant: whatever a client does that holds no key, the memory, time and descriptors that it costs are bounded by
`Limits`; a client with a key is held to the body's limits, and never counted by its address.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ajet.gateway.request import Refused

PEER = "ajet.peer"
"""In a scope's state: the connection that the request came by. Absent in this process's own transport."""
FREE_GUESSES = 20
"""Wrong keys of one address that are answered at once; one more is free each second."""
LONGEST_PAUSE = 5.0
"""Seconds before the answer to a wrong key, at most."""
_ADDRESSES = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    head_bytes: int = 64 << 10
    """Of a request's line and headers; also of what comes between the parts of a body."""
    headers: int = 100
    head_seconds: float = 20.0
    """From the first byte of a request, or the connection's beginning, to the end of its headers."""
    body_seconds: float = 60.0
    """Between two parts of a body, while the server reads."""
    idle_seconds: float = 300.0
    """Between two requests of a connection."""
    unread_seconds: float = 300.0
    """In which a client reads nothing of what was sent to it: it hangs, or its machine is gone."""
    connections: int = 32768
    """In all; there are never more than the descriptors allow."""
    strangers: int = 512
    """Connections of one address that have not shown a valid key; the oldest of them makes room for a new one."""
    body_bytes: int = 1 << 30
    """Of all bodies that are being received."""
    reserve: int = 128
    """Descriptors that no connection takes; the record needs some. At most an eighth of what the process may open."""


class Peer(Protocol):
    """The other end of a connection, as requests see it."""

    shared: Shared
    transport: Any
    """asyncio's."""
    guessed: bool
    """It has shown a wrong key, and no valid one."""

    def welcome(self) -> None:
        """Note that the client has shown a valid key."""

    @property
    def address(self) -> str:
        """The client's address."""

    @property
    def begun(self) -> bool:
        """What it asks now is being answered: its client has the reply's head."""


class Shared:
    """The counts that the connections of one server share."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.body_bytes = 0
        self._guesses: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def pause_after_guess(self, address: str) -> float:
        """Count a wrong key; answers for how many seconds its answer is to wait."""
        now = asyncio.get_running_loop().time()
        count, last = self._guesses.pop(address, (0.0, now))
        count = max(0.0, count - (now - last)) + 1
        self._guesses[address] = (count, now)
        if len(self._guesses) > _ADDRESSES:
            self._guesses.popitem(last=False)
        return min(LONGEST_PAUSE, 0.1 * max(0.0, count - FREE_GUESSES))


class Held:
    """The bytes of one body, counted with those of all others while it is being received (a context manager)."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        peer = peer_of(scope)
        self._shared = None if peer is None else peer.shared
        self._bytes = 0

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shared is not None:
            self._shared.body_bytes -= self._bytes

    def add(self, size: int) -> None:
        """So many more have come. Raises Refused where there is no room for them."""
        shared = self._shared
        if shared is None:
            return
        if shared.body_bytes + size > shared.limits.body_bytes:
            raise Refused(
                "The server is receiving as much as it can hold; try again.",
                status=503,
                code="too_many_bodies",
                retry_after=1,
            )
        shared.body_bytes += size
        self._bytes += size


def welcome(scope: Mapping[str, Any]) -> None:
    """The request bears a valid key."""
    peer = peer_of(scope)
    if peer is not None:
        peer.welcome()


async def after_wrong_key(scope: Mapping[str, Any]) -> None:
    """Wait before telling a request that its key is wrong: the longer, the more its address has tried."""
    peer = peer_of(scope)
    if peer is None:
        return
    peer.guessed = True
    if pause := peer.shared.pause_after_guess(peer.address):
        await asyncio.sleep(pause)


def peer_of(scope: Mapping[str, Any]) -> Peer | None:
    """Where a request came from; None: from this process."""
    peer: Peer | None = scope.get("state", {}).get(PEER)
    return peer


def admitting(app: ASGIApp) -> ASGIApp:
    """The app, by which whoever is answered is known from then on; a wrong key (401) is answered the later, the more
    there were."""

    async def admits(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 401:
                    await after_wrong_key(scope)
                elif message["status"] < 400:
                    welcome(scope)
            await send(message)

        await app(scope, receive, sending)

    return admits
