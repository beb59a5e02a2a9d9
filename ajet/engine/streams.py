"""Passes chunks from the engine's thread to the callers' event loops.

Invariant: each step wakes each loop at most once, regardless of the number of waiting calls. A call's chunks arrive in
order and end with a finish or an error.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ajet.engine.contract import TokenChunk
from ajet.schema.errors import EngineFailure


class TokenStream:
    """The chunks of one call. `put` runs on the stream's loop; the caller awaits `next`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._chunks: deque[TokenChunk | EngineFailure] = deque()
        self._reader_future: asyncio.Future[None] | None = None

    async def next(self) -> TokenChunk:
        """Wait for the next chunk.

        Raises:
            EngineFailure: the call failed.
        """
        while not self._chunks:
            self._reader_future = self.loop.create_future()
            await self._reader_future
        item = self._chunks.popleft()
        if isinstance(item, EngineFailure):
            raise item
        return item

    def put(self, item: TokenChunk | EngineFailure) -> None:
        """Add a chunk or a failure, and wake the reader. Must run on the stream's loop."""
        self._chunks.append(item)
        if self._reader_future is not None and not self._reader_future.done():
            self._reader_future.set_result(None)
            self._reader_future = None


class Outbox:
    """Collects the chunks of one engine step for each event loop, to wake each loop once."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, list[tuple[TokenStream, TokenChunk | EngineFailure]]] = {}

    def add(self, stream: TokenStream, item: TokenChunk | EngineFailure) -> None:
        """Queue an item for the next `send`."""
        self._by_loop.setdefault(stream.loop, []).append((stream, item))

    def send(self) -> None:
        """Deliver all queued chunks and wake each loop once. Items of closed loops are dropped."""
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
