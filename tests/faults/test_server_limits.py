"""What a neighbour without a key can do to a server of ours: be refused, in time, and stop no other."""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateways import Sampling, start_gateway
from tests.support.served import RunningServer, ServerLimits, hold_wrong_keys, start_serving
from tests.support.waiting import until

pytestmark = pytest.mark.slow
READ_SOON = ServerLimits(unread_seconds=0.4)


@contextmanager
def raw(served: RunningServer, sent: bytes = b"") -> Iterator[socket.socket]:
    """A connection by which `sent` was sent."""
    url = served.client.base_url
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(sent)
        yield connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the server has closed it."""
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
    except ConnectionResetError:
        pass
    return got


def endless(connection: socket.socket, part: bytes) -> bytes:
    """Send that until the server will not have it; what it says."""
    try:
        for _ in range(256):  # 16 MiB, of which far less fits into the system's buffers
            connection.sendall(part)
    except OSError:
        return rest(connection)
    raise AssertionError("the server takes all of it")


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
FLOODS = {
    "headers": (HEAD, b"x-a: b\r\n" * 8192),
    "a value": (HEAD + b"x-a: ", b"v" * 65536),
    "a name": (HEAD, b"n" * 65536),
    "a path": (b"GET /", b"p" * 65536),
    "empty lines": (b"", b"\r\n" * 32768),
    "a trailer": (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx-a: ", b"v" * 65536),
    "an extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n1;a=", b"v" * 65536),
}


@pytest.fixture(scope="module")
def shared():
    with start_serving(limits=ServerLimits(head_seconds=60)) as served:
        yield served


@pytest.mark.parametrize("flood", FLOODS)
def test_bytes_that_lead_to_nothing_are_bounded(shared, flood):
    begin, part = FLOODS[flood]
    with raw(shared, begin) as connection:
        endless(connection, part)
    assert httpx.get(f"{shared.client.base_url}/health").status_code == 200


def test_headers_that_are_too_many_or_too_long_are_told_so_and_long_enough_ones_are_not(shared):
    for more in (b"x-a: b\r\n" * 200, b"x-a: " + b"v" * 70_000 + b"\r\n"):
        with raw(shared, HEAD + more + b"\r\n") as connection:
            answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 431 ") and b"application/json" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert shared.client.get("/episodes", headers={"x-a": "v" * 50_000}).status_code == 200


def test_what_is_no_request_is_told_so_in_json(shared):
    with raw(shared, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n") as connection:
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD[:9], b"\r\n"], ids=["nothing", "half", "less", "a line"])
def test_a_request_that_does_not_come_is_not_waited_for(sent):
    with start_serving(limits=ServerLimits(head_seconds=0.2)) as served, raw(served, sent) as connection:
        assert rest(connection)[:13] == (b"HTTP/1.1 408 " if sent else b"")


def asking(key: str, length: int) -> bytes:
    """The head of a request with a key, whose body is to have so many bytes."""
    return HEAD + f"authorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n".encode()


def test_a_body_that_stops_coming_is_not_waited_for():
    with start_serving() as served:
        opened = served.open(task="a")
        with (
            served.limits_for_new_connections(ServerLimits(body_seconds=0.2)),
            raw(served, asking(opened["api_key"], 900) + b"{") as connection,
        ):
            assert rest(connection) == b""
        assert served.ask(opened).status_code == 200, "the key is good for others still"


def test_a_client_that_reads_nothing_of_its_reply_does_not_hold_its_episode_open():
    """It hangs, or its machine is gone: what it was to read waits in no buffer, and nobody waits for it, for good."""
    with start_gateway(
        ["long " * 600], chunk=1, max_model_len=9000, max_response_tokens=8000, limits=READ_SOON
    ) as served:
        assert httpx.get(f"{served.root_url}/health").status_code == 200
        served.shrink_send_buffers(4096)
        session = served.open(sampling=Sampling(8000))
        key = session.endpoint("agent").api_key
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(served.address)
            connection.sendall(asking(key, len(body)) + body)
            assert until(lambda: session.calls and not session.is_sampling), "the reply is made"
            assert until(lambda: session.is_idle and not served.open_connections(), seconds=20)
        assert served.clients == 0


def test_a_connection_that_was_reset_is_not_kept_until_it_would_have_been_idle(shared):
    with raw(shared, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") as connection:
        assert b"200" in connection.recv(4096)
        kept = [weakref.ref(each) for each in shared.gateway.open_connections()]
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert kept and until(lambda: gc.collect() >= 0 and any(each() is None for each in kept), seconds=20)


def test_bodies_are_bounded_in_all():
    with start_serving(limits=ServerLimits(body_bytes=1000)) as served:
        opened = served.open(task="a")
        with raw(served, asking(opened["api_key"], 1000) + b" " * 900) as first:
            answer = served.ask(opened, "x" * 400)
            until = time.monotonic() + 60
            while (
                answer.status_code == 200 and time.monotonic() < until
            ):  # the first one's bytes have not been read yet
                answer = served.ask(opened, "x" * 400)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "too_many_bodies"
            first.sendall(b" " * 100)
            assert first.recv(13) == b"HTTP/1.1 400 "
        assert served.ask(opened, "x" * 400).status_code == 200


def test_the_oldest_stranger_makes_room_and_who_has_shown_a_key_does_not():
    with start_serving(limits=ServerLimits(strangers=3)) as served:
        opened = served.open(task="a")  # by a connection that goes on
        held = [socket.create_connection((served.client.base_url.host, served.client.base_url.port)) for _ in range(9)]
        try:
            for connection in held[:6]:
                connection.settimeout(30)
                assert rest(connection) == b""
            assert served.client.get(f"/episodes/{opened['episode']}").json()["status"] == "open"
            assert served.ask(opened).status_code == 200
        finally:
            for connection in held:
                connection.close()


def test_as_many_connections_as_there_is_room_for_and_the_next_waits():
    with start_serving(limits=ServerLimits(connections=2)) as served:
        head = f"GET /episodes HTTP/1.1\r\nhost: x\r\nx-api-key: {served.client.headers['authorization'][7:]}\r\n\r\n"
        with raw(served, head.encode()) as first:
            assert first.recv(13) == b"HTTP/1.1 200 "  # it has shown its key, and makes room for nobody
            with raw(served, head.encode()) as second:
                assert second.recv(13) == b"HTTP/1.1 200 "
                with raw(served, head.encode()) as third:
                    patience = third.gettimeout()
                    third.settimeout(0.3)
                    with pytest.raises(TimeoutError):
                        third.recv(1)
                    third.settimeout(patience)
                    second.close()
                    assert third.recv(13) == b"HTTP/1.1 200 "


def test_idle_connections_leave_the_record_its_descriptors(tmp_path: Path):
    """1,024 descriptors in all, which is usual, are here those that are open and some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with start_serving(backlog=9, num_repeat=1, pending=tmp_path / "pending") as served:
        opened = served.open(task="a")
        assert served.ask(opened).status_code == 200
        free = max(int(name) for name in os.listdir("/proc/self/fd")) + 1  # none above it is open
        resource.setrlimit(resource.RLIMIT_NOFILE, (free * 2 + 64, hard))
        code = (
            "import resource, socket, sys\n"
            f"resource.setrlimit(resource.RLIMIT_NOFILE, ({hard}, {hard}))\n"
            f"held = [socket.create_connection(({served.client.base_url.host!r}, {served.client.base_url.port})) "
            f"for _ in range({free * 2 + 200})]\n"
            "print(len(held), flush=True); sys.stdin.read()"
        )
        try:
            with neighbour(code) as lines:
                assert int(next(lines)) > free
                assert served.finish(opened, reward=1.0).status_code == 200
                assert httpx.get(f"{served.client.base_url}/health", timeout=30).status_code == 200
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert served.take_group().episodes[0].reward == 1.0


@contextmanager
def neighbour(code: str) -> Iterator[Any]:
    """Another process, and the lines that it prints."""
    import subprocess
    import sys

    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield iter(process.stdout)  # type: ignore[arg-type]
        finally:
            process.kill()


def test_a_server_takes_all_descriptors_that_it_may_have():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = max(int(name) for name in os.listdir("/proc/self/fd")) + 1  # none above it is open
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1, free + 300), hard))
    try:
        with start_serving() as served:
            assert served.client.get("/health").status_code == 200
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_guesses_keys_waits_and_who_has_one_does_not(shared):
    url = shared.client.base_url
    opened = shared.open(task="a", train=False)
    wrong = b"GET /episodes HTTP/1.1\r\nhost: x\r\nx-api-key: wrong\r\n\r\n"
    held = [socket.create_connection((url.host, url.port), timeout=30) for _ in range(120)]
    try:
        with hold_wrong_keys(60.0):
            for connection in held:
                connection.sendall(wrong)
            assert held[0].recv(13) == b"HTTP/1.1 401 "
            assert shared.ask(opened).status_code == 200
            held[-1].setblocking(False)
            with pytest.raises(BlockingIOError):
                held[-1].recv(13)
    finally:
        for connection in held:
            connection.close()
