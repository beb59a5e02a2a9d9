"""ServerLimits: the limits of an ajet server, and the counters shared by its connections.

Invariant: `ServerLimits` bounds the memory, time and descriptors used by clients without a key. A client with a key is
limited by the size of bodies only, and is never counted by its address.
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
"""State key: the connection of the request. Absent in the in-process transport."""
FREE_GUESSES = 20
"""Wrong keys of one address answered without delay; one more is allowed each second."""
LONGEST_PAUSE = 5.0
"""Longest delay in seconds before the answer to a wrong key."""
_ADDRESSES = 4096


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one server."""

    head_bytes: int = 64 << 10
    """Bytes of a request's line and headers, also of data between the parts of a body."""
    headers: int = 100
    head_seconds: float = 20.0
    """Seconds from the first byte of a request, or the start of the connection, to the end of the headers."""
    body_seconds: float = 60.0
    """Seconds between two parts of a body, while the server reads."""
    idle_seconds: float = 300.0
    """Seconds between two requests of a connection."""
    unread_seconds: float = 300.0
    """Seconds in which a client reads no sent data: the client hangs, or its machine is gone."""
    connections: int = 32768
    """Limit on all connections; the number of descriptors is a further limit."""
    strangers: int = 512
    """Connections of one address without a valid key; a new connection replaces the oldest."""
    body_bytes: int = 1 << 30
    """Bytes of all bodies in transfer."""
    reserve: int = 128
    """Descriptors reserved for the record; at most an eighth of the process's limit."""


class ClientConnection(Protocol):
    """What the limits need of a client's connection. A protocol, because the connection's module imports this one."""

    shared: ServerCounters
    transport: Any
    guessed: bool
    """True after a wrong key and before a valid one."""

    def welcome(self) -> None:
        """Note a valid key of the client."""

    @property
    def address(self) -> str:
        """The network address of the client."""

    @property
    def begun(self) -> bool:
        """True once the head of the reply is sent."""


class ServerCounters:
    """The counters that the connections of one server share."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.body_bytes = 0
        self._wrong_keys_by_address: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def pause_after_guess(self, address: str) -> float:
        """Count a wrong key from an address, and return the seconds by which its answer is delayed.

        The count falls by one per second. The first few wrong keys cause no delay.
        """
        now = asyncio.get_running_loop().time()
        count, last_at = self._wrong_keys_by_address.pop(address, (0.0, now))
        count = max(0.0, count - (now - last_at)) + 1
        self._wrong_keys_by_address[address] = (count, now)
        if len(self._wrong_keys_by_address) > _ADDRESSES:
            self._wrong_keys_by_address.popitem(last=False)
        return min(LONGEST_PAUSE, 0.1 * max(0.0, count - FREE_GUESSES))  # 0.1 s for each wrong key above the free ones


class BodyBytes:
    """Counts the bytes of one request body in transfer. The sum over all bodies of a server is bounded.

    As a context manager it releases the bytes at the end of the block.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        peer = peer_of(scope)
        self._peer_counters = None if peer is None else peer.shared
        self._bytes = 0

    def __enter__(self) -> BodyBytes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._peer_counters is not None:
            self._peer_counters.body_bytes -= self._bytes

    def add(self, size: int) -> None:
        """Count more bytes. Raises Refused if all bodies together exceed the limit."""
        shared = self._peer_counters
        if shared is None:
            return
        if shared.body_bytes + size > shared.limits.body_bytes:
            raise Refused(
                "The request bodies that the server is receiving exceed its memory limit; retry later.",
                status=503,
                code="too_many_bodies",
                retry_after=1,
            )
        shared.body_bytes += size
        self._bytes += size


def welcome(scope: Mapping[str, Any]) -> None:
    """Tell the connection of a request that its client has shown a valid key."""
    peer = peer_of(scope)
    if peer is not None:
        peer.welcome()


async def after_wrong_key(scope: Mapping[str, Any]) -> None:
    """Delay the answer to a wrong key: the more wrong keys from an address, the longer."""
    peer = peer_of(scope)
    if peer is None:
        return
    peer.guessed = True
    if pause := peer.shared.pause_after_guess(peer.address):
        await asyncio.sleep(pause)


def peer_of(scope: Mapping[str, Any]) -> ClientConnection | None:
    """Return the connection of a request, or None for the in-process transport."""
    peer: ClientConnection | None = scope.get("state", {}).get(PEER)
    return peer


def admitting(app: ASGIApp) -> ASGIApp:
    """Wrap an app that checks keys itself, and derive from its status whether a client's key is valid.

    A status below 400 proves a valid key. A 401 is delayed, against guessing.
    """

    async def admits(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and note from the status of its answer whether the key was valid."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 401:
                    await after_wrong_key(scope)
                elif message["status"] < 400:
                    welcome(scope)
            await send(message)

        await app(scope, receive, sending)

    return admits
