"""An OpenAI-compatible endpoint that lists its model and does not answer as one should: it hangs, or says what is no
reply.

`ODD` is what a person meets; each way is one test case of every part that asks endpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from loguru import logger

PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"
CHUNK = b'data: {"id": "r", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "4"}}]}\n\n'
HANGS = ("never answers", "sends headers", "sends a token", "sends signs of life")
ODD = {
    "a page": (PAGE, "text/html"),
    "nothing": (b"", "application/json"),
    "other JSON": (b'{"detail": "gone"}', "application/json"),
    "half": (b'{"choices": [{"mess', "application/json"),
    "half a stream": (CHUNK, "text/event-stream"),
    "nested": (b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "application/json"),
    "long integers": (b'{"choices": [{"index": ' + b"9" * 4000 + b"}]}", "application/json"),
}
"""What it says instead: body, content-type; with status 200."""


class Odd(BaseHTTPRequestHandler):
    """As its server's `way` says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._say(b'{"object": "list", "data": [{"id": "m"}]}', "application/json")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        server = self.server
        server.asked += 1  # type: ignore[attr-defined]
        way: str = server.way  # type: ignore[attr-defined]
        if way in ODD:
            self._say(*ODD[way])
            return
        if way != "never answers":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
        if way == "sends a token":
            self._piece(CHUNK)
        released: threading.Event = server.released  # type: ignore[attr-defined]
        while not released.wait(0.05 if way == "sends signs of life" else None):
            try:
                self._piece(b": ping\n\n")
            except OSError:
                break
        self.close_connection = True

    def _piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _say(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class OddServer(ThreadingHTTPServer):
    """`way` may be changed while it serves; `asked`: requests so far."""

    daemon_threads = True

    def __init__(self, way: str) -> None:
        super().__init__(("127.0.0.1", 0), Odd)
        self.way, self.asked, self.released = way, 0, threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: object, client_address: object) -> None:
        """Its client left: that is what is tested."""


@contextmanager
def odd_endpoint(way: str) -> Iterator[OddServer]:
    """One that answers in this way."""
    server = OddServer(way)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def warnings_said() -> Iterator[list[str]]:
    """What is logged within the block as a warning or worse."""
    said: list[str] = []
    number = logger.add(lambda line: said.append(str(line).rstrip("\n")), format="{message}", level="WARNING")
    try:
        yield said
    finally:
        logger.remove(number)
