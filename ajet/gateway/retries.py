"""Retries: a client that asks again for what it did not get is answered with what it asked for.

Invariant: a request is a retry of an earlier one exactly when its key, its place and its body are the same, and it says
that it is one (`x-stainless-retry-count` above 0, or an equal `Idempotency-Key`), and the earlier one's reply was not
delivered to its end. It then joins the calls that run, hears from the beginning what was sampled, or has an aborted
call go on from its last token: in each case it is the same call. Everything else is a call of its own. On the
gateway's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ajet.gateway.capture import CLIENT_LEFT, Entry
from ajet.gateway.dialects.contract import Asked
from ajet.gateway.reply import Reply
from ajet.gateway.running_calls import ENGINE_FAILED, EPISODE_ENDED
from ajet.gateway.turn import Refused, Turn, TurnRequest
from ajet.schema.call import FinishReason

Make = Callable[[Reply], Awaitable[Turn]]
Check = Callable[[Sequence[TurnRequest]], Awaitable[None]]
_KEPT = 64
"""Requests whose clients have left that a session remembers."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A request's own word on being a retry."""

    count: int = 0
    idempotency: bytes | None = None

    @classmethod
    def of(cls, headers: Mapping[bytes, bytes]) -> Signal:
        """The signal in a request's headers."""
        count = headers.get(b"x-stainless-retry-count", b"0")
        return cls(int(count) if count.isdigit() and len(count) < 9 else 0, headers.get(b"idempotency-key") or None)

    def __bool__(self) -> bool:
        return self.count > 0 or self.idempotency is not None


def digest_of(*parts: bytes) -> bytes:
    """The digest by which requests are told apart."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class LostReply(NamedTuple):
    """A reply that no client received: its call, and how that call is to be recorded."""

    entry: Entry
    finish: FinishReason
    error: str


@dataclass(slots=True, eq=False)
class Asking:
    """One request of a client, and its replies, whoever takes them. `leave` follows each `join`."""

    asked: Asked
    signal: Signal
    count: int = 0
    """The largest retry count heard."""
    replies: list[Reply] = field(default_factory=list)
    readers: int = 0
    deliveries: int = 0
    """Clients that received the replies: all of them, since a request is answered as a whole."""
    refused: Refused | None = None
    """The error that its client got instead; None also where the gateway itself failed."""
    checked: asyncio.Future[None] | None = None
    """Done, or failed, once it is known whether all of it can be made; None: there is nothing to know."""

    def __post_init__(self) -> None:
        self.replies = [Reply(turn, streamed=self.asked.stream) for turn in self.asked.turns]

    @property
    def tasks(self) -> Sequence[asyncio.Task[Turn]]:
        """The tasks that make the replies, once somebody has joined."""
        return [reply.task for reply in self.replies if reply.task is not None]

    @property
    def failed(self) -> bool:
        """A reply ended with an error: asking again means asking anew."""
        return any(task.done() and not task.cancelled() and task.exception() is not None for task in self.tasks)

    def list_lost(self, *, ended: bool = False) -> list[LostReply]:
        """The calls whose replies no client received. `ended`: the episode is over, and nobody comes back for them."""
        if self.deliveries:
            return []
        finish: FinishReason = "aborted"
        if self.failed or self.refused is not None:
            if self.refused is None or self.refused.code == ENGINE_FAILED:
                finish = "error"
            why = f"its request was answered with an error: {self.refused or 'an internal error'}"
        else:
            why = EPISODE_ENDED if ended and self.readers else CLIENT_LEFT
        return [LostReply(reply.entry, finish, why) for reply in self.replies if reply.entry is not None]

    def join(self, make: Make, check: Check) -> None:
        """Somebody takes the replies; they are begun, or gone on with."""
        self.readers += 1
        if self.asked.checks and self.checked is None:
            self.checked = asyncio.ensure_future(check(self.asked.checks))
            self.checked.add_done_callback(_retrieve)
        for reply in self.replies:
            if reply.task is None:
                reply.task = asyncio.ensure_future(self._checked(make, reply))
            elif reply.left:
                reply.task = asyncio.ensure_future(_after(reply.task, partial(self._checked, make), reply))
            else:
                continue
            reply.left = False
            reply.task.add_done_callback(_retrieve)

    async def _checked(self, make: Make, reply: Reply) -> Turn:
        if self.checked is not None:
            await asyncio.wait([self.checked])
            self.checked.result()
        return await make(reply)

    async def leave(self) -> None:
        """Somebody has gone. What nobody takes any more is cancelled."""
        self.readers -= 1
        if self.readers:
            return
        running = [reply for reply in self.replies if reply.task is not None and not reply.task.done()]
        for reply in running:
            assert reply.task is not None
            reply.left = True
            reply.task.cancel()
        if running:
            await asyncio.wait([reply.task for reply in running if reply.task is not None])


async def _after(earlier: asyncio.Task[Turn], make: Make, reply: Reply) -> Turn:
    """Make the rest of a reply whose making was cancelled; or take what it came to all the same."""
    await asyncio.wait([earlier])
    return await make(reply) if earlier.cancelled() else earlier.result()


def _retrieve(ended: asyncio.Future[Any]) -> None:
    """A client is told of one failure, and whoever has left of none: asyncio need not complain of the others."""
    if not ended.cancelled():
        ended.exception()


class Askings:
    """The requests of one session that have not got their replies to the end."""

    def __init__(self) -> None:
        self._open: dict[bytes, list[Asking]] = {}
        self._left: list[tuple[bytes, Asking]] = []
        self._lost: list[LostReply] = []

    def earlier(self, digest: bytes, signal: Signal) -> Asking | None:
        """The request that this one repeats; None: it is one of its own."""
        found = [asking for asking in self._open.get(digest, ()) if not asking.failed]
        if signal.idempotency is not None:
            same = [asking for asking in found if asking.signal.idempotency == signal.idempotency]
            if same:
                return same[0]
            found = [asking for asking in found if asking.signal.idempotency is None]
        repeated = [asking for asking in found if asking.count < signal.count]
        return min(repeated, key=lambda asking: bool(asking.readers), default=None)

    def open(self, digest: bytes, asking: Asking) -> None:
        """A request has come."""
        self._open.setdefault(digest, []).append(asking)

    def done(self, digest: bytes, asking: Asking) -> None:
        """Forget the request: its reply was delivered, or was an error."""
        found = self._open.get(digest, [])
        if asking in found:
            found.remove(asking)
            if not found:
                del self._open[digest]
            self._lost += asking.list_lost()

    def list_lost(self) -> list[LostReply]:
        """The calls whose replies no client received, at the end of the episode."""
        still_open = [asking for listed in self._open.values() for asking in listed]
        return [*self._lost, *[lost for asking in still_open for lost in asking.list_lost(ended=True)]]

    def undelivered(self, digest: bytes, asking: Asking) -> None:
        """A client has left without its reply; the oldest such requests are forgotten."""
        if asking not in self._open.get(digest, ()):
            self.open(digest, asking)
        self._left.append((digest, asking))
        if len(self._left) > _KEPT:
            old = self._left.pop(0)
            if not old[1].readers:
                self.done(*old)
