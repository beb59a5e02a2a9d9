"""`ajet deploy` replaces its sessions as they fill: whoever has found one is answered, however long its request takes
to come, and however often they are replaced meanwhile."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from tests.support.deployed import replace_sessions_after, start_scripted_deployment
from tests.support.gateways import ASK
from tests.support.waiting import until

KEY = "a-key-of-my-own-0123456789"
BODIES = {
    "chat/completions": {"model": "m", "messages": ASK},
    "responses": {"model": "m", "input": "What is 1 + 2?"},
    "messages": {"model": "m", "messages": ASK[1:], "max_tokens": 9},
    "messages/count_tokens": {"model": "m", "messages": ASK[1:]},
}


@pytest.fixture
def model(tmp_path):
    with replace_sessions_after(1), start_scripted_deployment(tmp_path, KEY) as model:
        yield model


class Upload:
    """A request whose body comes in two parts."""

    def __init__(self, base: str, path: str) -> None:
        place = httpx.URL(base)
        body = json.dumps(BODIES[path]).encode()
        self.socket = socket.create_connection((place.host, place.port), timeout=60)
        head = f"POST /v1/{path} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
        self.socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:9])
        self.rest = body[9:]

    def finish(self) -> bytes:
        with self.socket:
            self.socket.sendall(self.rest)
            return b"".join(iter(lambda: self.socket.recv(65536), b""))


def ask(base: str) -> httpx.Response:
    told = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{base}/chat/completions", json=BODIES["chat/completions"], headers=told, timeout=60)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_comes_slowly_is_answered_across_renewals(model, path):
    first = model.session
    upload = Upload(model.base_url, path)
    assert until(lambda: not first.is_idle, seconds=20)
    assert first.last_call > 0  # nor is its client silent
    for _ in range(4):
        assert ask(model.base_url).status_code == 200
        model.tend()
    oldest, newest = model.replaced_sessions
    assert oldest == first and model.session not in (first, newest) and not model.is_idle
    answered = upload.finish()
    assert answered.startswith(b"HTTP/1.1 200"), answered
    assert until(lambda: model.is_idle, seconds=20)
    model.tend()
    assert first.is_closed and model.replaced_sessions == []


def test_who_is_still_uploading_is_waited_for_at_the_end(model):
    upload = Upload(model.base_url, "chat/completions")
    assert until(lambda: not model.is_idle, seconds=20)
    assert b"Three." in upload.finish() and until(lambda: model.is_idle, seconds=20)


def test_a_client_that_leaves_in_the_middle_of_its_body_holds_no_session(model):
    upload = Upload(model.base_url, "chat/completions")
    assert until(lambda: not model.is_idle, seconds=20)
    upload.socket.close()
    assert until(lambda: model.is_idle, seconds=20)
