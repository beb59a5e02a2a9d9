"""The head of a reply waits for what comes with it, so that both are one write.

uvicorn writes a reply's head and its body apart. A client on the same machine is woken by the first and takes the core
before the second is written: with few cores a short reply then costs several times its own work. Invariants: bytes
leave in the order in which they were written; a head waits until the loop's next turn at most, so that the beginning of
a stream is held up by nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "


class HeldHead:
    """A connection's transport; what it does not have is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """See asyncio."""
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """See asyncio: what was written is sent."""
        self._flush_head()
        self._transport.close()

    def _flush_head(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
