"""The head of a reply and what comes with it are one write; what comes later is not waited for."""

from __future__ import annotations

import asyncio

from ajet.gateway.connection import HeldHead

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Sink:
    """What a socket would be sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_a_head_goes_with_its_body_and_waits_for_no_later_one():
    async def play() -> list[bytes]:
        sink = Sink()
        held = HeldHead(sink, asyncio.get_running_loop())  # type: ignore[arg-type]
        held.write(HEAD)
        held.write(b"whole")
        held.write(HEAD)
        await asyncio.sleep(0)
        held.write(b"streamed")
        held.write(HEAD)
        held.close()
        held.write(HEAD)  # after its end, as a reply that was being made
        await asyncio.sleep(0)
        assert held.is_closing()
        return sink.sent

    assert asyncio.run(play()) == [HEAD + b"whole", HEAD, b"streamed", HEAD]
