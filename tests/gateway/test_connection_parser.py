"""Requests that offer HTTP/2 are answered as HTTP/1.1 with their body intact, at every server of ours."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.gateway.connection import PlainParser
from tests.support.served import KEY, RunningServer, start_serving

QUESTION = {"task": {"question": "MY OWN QUESTION é", "answer": "3"}}
JAVA = """
import java.net.URI;
import java.net.http.*;

public class Player {
    public static void main(String[] args) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(args[0])).header("Authorization", "Bearer " + args[1])
            .POST(HttpRequest.BodyPublishers.ofString(args[2])).build();
        HttpResponse<String> reply = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(reply.statusCode() + " " + reply.body());
    }
}
"""


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with start_serving(tasks=1) as made:
        yield made


class Heard:
    """Keeps what a parser reports, one (head, body) a request."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, list[tuple[bytes, bytes]], bytearray]] = []
        self.ended = 0

    def on_message_begin(self) -> None:
        self.url, self.headers = b"", []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.requests.append((self.url, self.headers, bytearray()))

    def on_body(self, body: bytes) -> None:
        self.requests[-1][2].extend(body)

    def on_message_complete(self) -> None:
        self.ended += 1


def written(body: bytes, offer: str, *, chunked: bool, expects: bool) -> bytes:
    """One request as it goes over the wire."""
    lines = ["POST /a%20b?c=d HTTP/1.1", "Host: x", *offer.splitlines()]
    if expects:
        lines.append("Expect: 100-continue")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:3], body[3:]) if part) + b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


OFFERS = [
    "",
    "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMA",
    "connection: keep-alive,upgrade\nUPGRADE: websocket",
    "Upgrade: TLS/1.0, h2c\nConnection: Upgrade",
    "Upgrade: h2c",
]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(bodies=st.lists(st.tuples(st.binary(max_size=40), st.sampled_from(OFFERS), st.booleans(), st.booleans()),
                       min_size=1, max_size=4), cuts=st.lists(st.integers(0, 800), max_size=8))  # fmt: skip
def test_pipelined_bodies_survive_any_cut(bodies, cuts):
    wire = b"".join(written(body, offer, chunked=chunked, expects=e) for body, offer, chunked, e in bodies)
    heard = Heard()
    parser = PlainParser(heard)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    for begin, end in zip(edges, edges[1:], strict=False):
        parser.feed_data(wire[begin:end])
    assert [bytes(body) for _, _, body in heard.requests] == [body for body, *_ in bodies]
    assert heard.ended == len(bodies) and parser.should_keep_alive()
    for (url, headers, _), (_, offer, chunked, expects) in zip(heard.requests, bodies, strict=True):
        names = [name for name, _ in headers]
        assert url == b"/a%20b?c=d" and (b"expect" in names) == expects
        assert (b"transfer-encoding" in names) == chunked
        assert offer == "Upgrade: h2c" or b"upgrade" not in names


def exchanged(served: RunningServer, wire: bytes) -> bytes:
    """All that the server answers until it closes the connection."""
    url = served.client.base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(wire)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("method", ["GET", "CONNECT"])
def test_requests_without_body_are_answered(served, method):
    target = "/health" if method == "GET" else "x:1"
    offer = "Connection: close, Upgrade\r\nUpgrade: h2c\r\n" if method == "GET" else ""
    reply = exchanged(served, f"{method} {target} HTTP/1.1\r\nHost: x\r\n{offer}\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 200" if method == "GET" else b"HTTP/1.1 400")


def test_expectation_is_met_before_body(served):
    url = served.client.base_url
    body = json.dumps(QUESTION).encode()
    lines = ["POST /episodes HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", *OFFERS[1].splitlines()]
    lines += ["Connection: close", "Expect: 100-continue", f"Content-Length: {len(body)}"]
    head = "\r\n".join([*lines, "", ""])
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["task"]["main_query"] == QUESTION["task"]["question"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("more", [[], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue"]])
def test_curl_with_http2_plays_its_task(served, more):
    def post(url: str, key: str, body: Any) -> Any:
        command = ["curl", "-sS", "--noproxy", "*", "--http2", "-X", "POST", url, "-H", f"Authorization: Bearer {key}"]
        sent = subprocess.run([*command, *more, "-d", json.dumps(body)], capture_output=True, text=True, timeout=30)
        assert sent.returncode == 0, sent.stderr
        return json.loads(sent.stdout)

    root = str(served.client.base_url).rstrip("/")
    opened = post(f"{root}/episodes", KEY, QUESTION)
    assert opened["task"]["main_query"] == QUESTION["task"]["question"]
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    reply = post(f"{opened['base_url']}/chat/completions", opened["api_key"], asked)
    assert reply["choices"][0]["message"]["content"] == "yes"
    assert post(f"{root}/episodes/{opened['episode']}/finish", KEY, {"reward": 0.25})["reward"] == 0.25


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK")
def test_jdk_client_is_given_its_task(served, tmp_path: Path):
    (tmp_path / "Player.java").write_text(JAVA)
    url = str(served.client.base_url.join("/episodes"))
    played = subprocess.run(
        ["java", "Player.java", url, KEY, json.dumps(QUESTION)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    status, _, body = played.stdout.partition(" ")
    assert status == "201" and json.loads(body)["task"]["main_query"].startswith("MY OWN QUESTION")
