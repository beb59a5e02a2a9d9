"""A server over HTTP of the standard library alone, of either era, strict about what a client sends.

    python tests/mcp_servers/plain_http.py ERA        prints its port; ERA: modern, legacy

Invariant: a modern one refuses what the revision of 2026-07-28 refuses (headers that do not say what the body says); a
legacy one what earlier revisions do (no session, a session that is over).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
TOKEN = "right"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "echo", "description": "Say it again.", "inputSchema": TEXT},
    {"name": "add", "inputSchema": {"type": "object"}},
    {"name": "add_safely", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}},
    {"name": "add_by_id", "inputSchema": {"type": "object"}, "_meta": {"ajet/callId": True}},
    {"name": "hang", "inputSchema": {"type": "object"}},
    {"name": "big", "inputSchema": {"type": "object"}},
    {"name": "routed", "inputSchema": {"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"}}}},
]  # fmt: skip


class PlainServer(ThreadingHTTPServer):
    """Runs in a thread of this process, or as this file's program."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, era: str = "modern", *, stream: bool = False, token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.era, self.stream, self.token = era, stream, token
        self.tools = [*TOOLS]
        self.sessions: set[str] = set()
        self.ended: list[str] = []
        self.added: list[Any] = []
        """Arguments and call ids of calls that were carried out."""
        self.headers_seen: list[dict[str, str]] = []
        self.drops = 0
        """So many calls are carried out and not answered: the connection breaks."""
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def start(self) -> PlainServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def process_request(self, request: Any, address: Any) -> None:
        self.connections += 1
        super().process_request(request, address)

    def handle_error(self, request: Any, address: Any) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    server: PlainServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.headers_seen.append({name.lower(): value for name, value in self.headers.items()})
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._say(401, {})
        if "id" not in body:
            return self._say(202, None)
        wrong = self._wrong(body)
        if wrong is not None:
            return self._say(wrong[0], {"jsonrpc": "2.0", "id": body["id"], "error": wrong[1]})
        more = {}
        if body["method"] == "initialize":
            session = uuid.uuid4().hex
            self.server.sessions.add(session)
            more["Mcp-Session-Id"] = session
        asked = body.get("params", {})
        if asked.get("name") == "big" and asked["arguments"]["size"] > 1 << 20:
            return self._flood(body["id"], asked["arguments"]["size"])
        answered = self._answer(body)
        if answered is None:
            self.close_connection = True
            return self.connection.close()
        if self.server.era == "modern" and "result" in answered:
            answered["result"] = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete", **answered["result"]}
        self._say(200, {"jsonrpc": "2.0", "id": body["id"], **answered}, more)

    def do_DELETE(self) -> None:
        session = self.headers.get("Mcp-Session-Id", "")
        self.server.sessions.discard(session)
        self.server.ended.append(session)
        self._say(200, None)

    def do_GET(self) -> None:
        self._say(405, None)

    def _wrong(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        heads, method = self.headers, body["method"]
        if self.server.era == "modern":
            meta = body.get("params", {}).get("_meta", {})
            if meta.get("io.modelcontextprotocol/protocolVersion") != MODERN:
                return 400, {"code": -32602, "message": "no envelope"}
            if heads.get("MCP-Protocol-Version") != MODERN or heads.get("Mcp-Method") != method:
                return 400, {"code": -32020, "message": "header mismatch"}
            if heads.get("Mcp-Session-Id"):
                return 400, {"code": -32020, "message": "there are no sessions"}
            if method == "tools/call" and heads.get("Mcp-Name") != body["params"]["name"]:
                return 400, {"code": -32020, "message": "Mcp-Name mismatch"}
            region = body["params"].get("arguments", {}).get("region")
            if heads.get("Mcp-Param-Region") != region:
                return 400, {"code": -32020, "message": "Mcp-Param-Region mismatch"}
            return None
        if method == "initialize":
            return None
        session = heads.get("Mcp-Session-Id")
        if session is None:
            return 400, {"code": -32600, "message": "Bad Request: Missing session ID"}
        return None if session in self.server.sessions else (404, {"code": -32600, "message": "Session not found"})

    def _answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        method, params = body["method"], body.get("params", {})
        if method == "server/discover":
            return {"result": {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}}
        if method == "initialize":
            info = {"name": "plain", "version": "1"}
            return {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}}
        if method == "tools/list":
            at = int(params.get("cursor") or 0)  # a page each for two tools
            following = {"nextCursor": str(at + 2)} if at + 2 < len(self.server.tools) else {}
            return {"result": {"tools": self.server.tools[at : at + 2], **following}}
        name, arguments = params["name"], params.get("arguments", {})
        if name == "hang":
            if "begun" in arguments:
                Path(arguments["begun"]).touch()
            time.sleep(arguments.get("seconds", 60))
        text = str(arguments.get("text", ""))
        if name == "big" and arguments["size"] <= 1 << 20:
            text = "x" * arguments["size"]
        if name.startswith("add"):
            self.server.added.append((arguments, params.get("_meta", {}).get("ajet/callId", "")))
            text = str(len(self.server.added))
            if self.server.drops > 0:
                self.server.drops -= 1
                return None
        if name not in [each["name"] for each in self.server.tools]:
            return {"error": {"code": -32602, "message": f"Unknown tool: {name}"}}
        return {"result": {"content": [{"type": "text", "text": text}]}}

    def _flood(self, id: Any, size: int) -> None:
        """A result of that many characters, never held whole."""
        begin = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % id
        end, chunk = b'"}],"resultType":"complete"}}', b"x" * (1 << 20)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(begin) + size + len(end)))
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # a client that has read enough is gone
            self.wfile.write(begin)
            for _ in range(size >> 20):
                self.wfile.write(chunk)
            self.wfile.write(end)

    def _say(self, status: int, message: dict[str, Any] | None, more: dict[str, str] | None = None) -> None:
        stream = self.server.stream and status == 200 and message is not None
        told = b"" if message is None else json.dumps(message).encode()
        if stream:
            ping = b'event: message\ndata: {"jsonrpc": "2.0", "method": "notifications/progress"}\n\n: a comment\n\n'
            told = ping + b"event: message\r\nid: 7\r\ndata: " + told + b"\r\n\r\n"
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
        self.send_header("Content-Length", str(len(told)))
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *told: Any) -> None:
        pass


if __name__ == "__main__":
    own = PlainServer(sys.argv[1])
    print(own.server_address[1], os.getpid(), flush=True)
    own.serve_forever()
