"""From the engine's thread to the callers' event loops.

Invariant: what the engine has to say to one loop in one step is one wake-up of that loop, however many calls wait
there; a call's chunks arrive in order and end with a finish or an error.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ajet.engine.contract import TokenChunk
from ajet.schema.errors import EngineFailure


class TokenStream:
    """One call's chunks on their way. `put` and `fail` run on the loop; `next` is awaited by the caller."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._chunks: deque[TokenChunk | EngineFailure] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> TokenChunk:
        """The next chunk. Raises EngineFailure."""
        while not self._chunks:
            self._waiter = self.loop.create_future()
            await self._waiter
        item = self._chunks.popleft()
        if isinstance(item, EngineFailure):
            raise item
        return item

    def put(self, item: TokenChunk | EngineFailure) -> None:
        """Hand over; on the stream's loop only."""
        self._chunks.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
            self._waiter = None


class Outbox:
    """Collects a step's chunks, by loop."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, list[tuple[TokenStream, TokenChunk | EngineFailure]]] = {}

    def add(self, stream: TokenStream, item: TokenChunk | EngineFailure) -> None:
        """To be sent with the next `send`."""
        self._by_loop.setdefault(stream.loop, []).append((stream, item))

    def send(self) -> None:
        """Wake each loop concerned once. A loop that has ended has nobody left to tell."""
        boxes, self._by_loop = self._by_loop, {}
        for loop, items in boxes.items():
            try:
                loop.call_soon_threadsafe(_deliver_items, items)
            except RuntimeError:
                if not loop.is_closed():
                    raise


def _deliver_items(items: list[tuple[TokenStream, TokenChunk | EngineFailure]]) -> None:
    for stream, item in items:
        stream.put(item)
