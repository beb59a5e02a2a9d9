"""Clients that ask for streamed replies, as many at once as there are places, and what they saw.

Invariant: a client does as little work as can be, so that what is measured is the server's; events are counted as they
come, and a stream counts as left open when it has not ended within the patience that it is given.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TOKENS = 32
"""Of a reply."""
SYSTEM = "You are a careful assistant that solves sums step by step and gives the answer in a box. " * 3


@dataclass
class Load:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    """Of each stream, from its request to its end."""
    open: int = 0
    failed: int = 0
    events: int = 0
    wall: float = 0.0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds) or [float("inf")]
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def events_a_stream(self) -> float:
        """Data events, the end's two (how it finished, [DONE]) among them, whether or not they came together."""
        return self.events / max(len(self.seconds), 1)


class Client(asyncio.Protocol):
    """One connection that asks, reads to the end, and asks again: as little work as can be."""

    def __init__(self, load: Load, place: dict[str, Any], numbers: Any, ended: asyncio.Event) -> None:
        self._load, self._place, self._numbers, self._ended = load, place, numbers, ended
        self._begun, self._tail, self._waits = 0.0, b"", False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._load.events += data.count(b"data: ")
        self._tail = (self._tail + data)[-512:]
        if self._tail.endswith(b"0\r\n\r\n"):
            if b"[DONE]" in self._tail:
                self._load.seconds.append(time.perf_counter() - self._begun)
            else:
                self._load.failed += 1
            self._ask()
        elif b"\r\n\r\n{" in self._tail and self._tail.endswith(b"}"):
            self._load.failed += 1
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.failed += self._waits
        self._waits = False
        self._end()

    def _ask(self) -> None:
        self._tail, self._waits = b"", False
        number = next(self._numbers, None)
        if number is None:
            self._transport.close()
            self._end()
            return
        body = {
            "model": "scripted",
            "stream": True,
            "max_tokens": TOKENS,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"What is {number} + {number * 7}?"},
            ],
        }
        content = json.dumps(body).encode()
        head = (
            f"POST {self._place['path']} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self._place['key']}\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._begun, self._waits = time.perf_counter(), True
        self._transport.write(head.encode() + content)

    def _end(self) -> None:
        self._ended.set()


async def drive(port: int, places: Sequence[dict[str, Any]], requests: int, patience: float) -> Load:
    """`requests` streams over as many connections as there are places."""
    load, loop = Load(), asyncio.get_running_loop()
    numbers = iter(range(requests))
    ends = [asyncio.Event() for _ in places]
    began = time.perf_counter()
    clients: list[Client] = []
    for place, ended in zip(places, ends, strict=True):
        client = Client(load, place, numbers, ended)
        clients.append(client)
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    waiting = [asyncio.ensure_future(ended.wait()) for ended in ends]
    await asyncio.wait(waiting, timeout=patience)
    load.wall = time.perf_counter() - began
    load.open = sum(client._waits for client in clients)
    for task in waiting:
        task.cancel()
    for client in clients:
        client._waits = False
        client._transport.abort()
    return load
