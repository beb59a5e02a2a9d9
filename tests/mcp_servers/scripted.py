"""An MCP server over HTTP or pipes that answers each method with the bytes that a test names.

    python -m tests.mcp_servers.scripted FILE        over pipes; FILE: JSON {method, or name of a tool: text}

Invariant: a reply goes out byte by byte as written; `$ID` in it is the request's id. A number between two parts of a
reply is a pause in seconds. Methods without a reply of their own are answered as a correct server would.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Part = bytes | float
Parts = Iterable[Part]
TOOL = {"name": "f", "description": "d", "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
RESULTS: dict[str, Any] = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x"}},
    "tools/list": {"tools": [TOOL]},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}


def rpc(result: str) -> str:
    """The text of an answer with this JSON as its result."""
    return f'{{"jsonrpc": "2.0", "id": $ID, "result": {result}}}'


def http(body: bytes | str, status: str = "200 OK", kind: str = "application/json", head: str = "") -> bytes:
    """A complete HTTP reply. `head`: more header lines, each ending in CRLF."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    lines = f"Connection: close\r\nContent-Type: {kind}\r\n{head}"
    if b"$ID" not in data:  # else the end of the connection is the end of the body
        lines += f"Content-Length: {len(data)}\r\n"
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + data


def chunked(*parts: Part, kind: str = "text/event-stream", ended: bool = True) -> list[Part]:
    """A chunked HTTP reply, one chunk a part."""
    lines = f"Connection: close\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    begin = f"HTTP/1.1 200 OK\r\n{lines}".encode()
    chunks = [p if isinstance(p, float) else b"%x\r\n" % _length(p) + p + b"\r\n" for p in parts]
    return [begin, *chunks, *([b"0\r\n\r\n"] if ended else [])]


def _length(part: bytes) -> int:
    """The length with an id of one digit in place of each `$ID`: sessions of the tests have fewer than ten requests."""
    return len(part) - 2 * part.count(b"$ID")


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    verb: str
    path: str
    headers: Mapping[str, str]
    message: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The JSON-RPC method; empty for a request without a body."""
        return str(self.message.get("method", ""))


Answer = Callable[[Asked], Parts | None]


class ScriptedServer(socketserver.ThreadingTCPServer):
    """Over HTTP, in a thread of this process. A connection is closed after each reply."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: Answer | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Answer = answer or (lambda asked: None)
        self.asked: list[Asked] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def address(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *problem: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has read enough is gone."""


class _Handler(socketserver.StreamRequestHandler):
    server: ScriptedServer

    def handle(self) -> None:
        asked = self._read()
        if asked is None:
            return
        self.server.asked.append(asked)
        parts = self.server.answer(asked)
        if parts is None:
            parts = correct_reply(asked)
        with contextlib.suppress(OSError):
            for part in parts:
                if isinstance(part, float):
                    time.sleep(part)
                else:
                    self.wfile.write(part.replace(b"$ID", json.dumps(asked.message.get("id")).encode()))

    def _read(self) -> Asked | None:
        words = self.rfile.readline().decode("latin-1").split()
        if len(words) != 3:
            return None
        headers: dict[str, str] = {}
        while line := self.rfile.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", 0)))
        return Asked(words[0], words[1], headers, json.loads(body) if body else {})


def correct_reply(asked: Asked) -> Parts:
    """The reply of a server that has sessions and one tool."""
    if asked.verb != "POST":
        return [http(b"", "405 Method Not Allowed" if asked.verb == "GET" else "200 OK")]
    if asked.method == "server/discover":
        return [http(b"", "400 Bad Request")]
    if "id" not in asked.message:
        return [http(b"", "202 Accepted")]
    return [http(rpc(json.dumps(RESULTS.get(asked.method, {}))))]


def stdio_command(folder: Path, replies: Mapping[str, str]) -> str:
    """The value of `environment.use` for a server over pipes with these replies."""
    file = folder / "replies.json"
    file.write_text(json.dumps(replies))
    return f"env PYTHONPATH={Path(__file__).parents[2]} {sys.executable} -m tests.mcp_servers.scripted {file}"


def main(file: str) -> None:
    """Answer on standard output what standard input asks."""
    replies = json.loads(Path(file).read_text())
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        correct = rpc(json.dumps(RESULTS.get(asked["method"], {})))
        text = replies.get(asked["params"].get("name"), replies.get(asked["method"], correct))
        data = text.replace("$ID", json.dumps(asked["id"])).encode("utf-8", "surrogatepass")
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
