"""AgentDock's own replies, as its server sends them: what is an error, and what a reply, whatever the HTTP status."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ajet_mcp import CallFailedError
from tests.support.mcp_fixtures import attempt

URL = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}}
GONE = {"status_code": 503, "detail": "its container is not there"}
SAID = {
    "web.fetch": {"content": "a page"},
    "web.json": {"content": {"rows": [1, 2]}},
    "web.search": {"content": [{"type": "text", "text": ["hit"]}, IMAGE]},
    "web.broken": {"status_code": 500, "detail": "no such host", "headers": None},
    "web.refused": {"status": "error", "content": {"error": "not today"}},
    "web.gone": GONE,
    "files.fetch": {"content": "a file"},
    "files.away": (502, "<html>bad gateway</html>"),
}


class Dock(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        tools = [name.split(".") for name in SAID]
        if self.path == "/mcpapi/servers":
            return self.answer({"servers": ["web", "files"]})
        server = self.path.split("/")[3]
        lines = [{"name": tool, "description": "d", "parameters": URL} for of, tool in tools if of == server]
        return self.answer({"server": server, "tools": [{"type": "function", "function": line} for line in lines]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.called.append(self.path.rpartition("/")[2])
        self.answer(SAID[self.server.called[-1]])

    def answer(self, told):
        status, body = told if isinstance(told, tuple) else (200, json.dumps(told))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def dock():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dock)
    server.called = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_its_replies_and_its_errors_inside_a_good_status(dock):
    async def plays():
        async with attempt(f"http://127.0.0.1:{dock.server_port}/mcpapi") as tools:
            names = [told["function"]["name"] for told in tools.definitions]
            assert names == ["web__fetch", "json", "search", "broken", "refused", "gone", "files__fetch", "away"]
            assert tools.definitions[0]["function"]["parameters"] == URL
            found = {name: await tools.use(name, {"url": "u"}) for name in names if name not in ("gone", "away")}
            assert {name: each.text for name, each in found.items()} == {
                "web__fetch": "a page", "json": '{"rows": [1, 2]}', "search": '["hit"]', "broken": "no such host",
                "refused": "not today", "files__fetch": "a file",
            }  # fmt: skip
            assert [name for name, each in found.items() if each.error == "tool"] == ["broken", "refused"]
            assert found["search"].images == ("data:image/jpeg;base64,AAAA",)
            for name in ("gone", "away"):
                with pytest.raises(CallFailedError) as lost:
                    await tools.use(name, {"url": "u"})
                assert (lost.value.boundary, tools.uses[-1].error) == ("environment", "transport")
            assert (await tools.use("web__fetch", {})).error == "arguments"

    asyncio.run(plays())
    assert dock.called.count("files.away") == 1, "it may have been carried out"
    assert dock.called.count("web.gone") > 1, "nobody was there: nothing was carried out"


def test_what_is_no_agentdock_is_said(dock):
    async def plays():
        async with attempt(f"http://127.0.0.1:{dock.server_port}/other/mcpapi"):
            pass

    with pytest.raises(CallFailedError, match="AgentDock server|no list of servers"):
        asyncio.run(plays())
