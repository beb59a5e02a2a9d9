"""HeldHead delays the head of a reply to send head and body in one write.

uvicorn writes the head and the body of a reply separately. The first write wakes a client on the same machine, and the
client takes the core before the second write: with few cores a short reply then costs several times its own work.
Invariants: bytes leave in the order of their writes; a head waits for the loop's next turn at most, so the beginning of
a stream is not delayed.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "


class HeldHead:
    """Wraps a connection's transport; all other attributes are the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """Write data, or hold the head of a reply until the next write."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send a held head, then close the transport."""
        self._flush_head()
        self._transport.close()

    def _flush_head(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
