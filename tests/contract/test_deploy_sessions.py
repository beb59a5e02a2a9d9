"""`ajet deploy` replaces its sessions as they fill: whoever has found one is answered, however long its request takes
to come, and however often they are replaced meanwhile."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager

import httpx
import pytest

from ajet.config.experiment import defaults_only
from ajet.run import deploy
from ajet.run.deploy import Deployed
from ajet.run.service_end import wait_for
from tests.support.gateways import ASK, start_gateway

KEY = "a-key-of-my-own-0123456789"
BODIES = {
    "chat/completions": {"model": "m", "messages": ASK},
    "responses": {"model": "m", "input": "What is 1 + 2?"},
    "messages": {"model": "m", "messages": ASK[1:], "max_tokens": 9},
    "messages/count_tokens": {"model": "m", "messages": ASK[1:]},
}


@contextmanager
def deployed(tmp_path, monkeypatch, **options):
    monkeypatch.setattr(deploy, "MOST_CALLS", 1)
    experiment = defaults_only(backbone="debug", name="tool", exp_dir=tmp_path)
    with start_gateway(["Three."] * 20, **options) as made:
        yield Deployed(made.gateway, KEY, "tool", experiment).open()


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
def test_a_body_that_comes_slowly_is_answered_across_renewals(tmp_path, monkeypatch, path):
    with deployed(tmp_path, monkeypatch) as model:
        first = model._now
        upload = Upload(model.gateway.base_url, path)
        assert wait_for(lambda: not first.idle, 20)
        assert first.last_call > 0  # nor is its client silent
        for _ in range(4):
            assert ask(model.gateway.base_url).status_code == 200
            model.tend()
        assert model._now is not first and model._before == [first, model._before[-1]] and not model.idle
        answered = upload.finish()
        assert answered.startswith(b"HTTP/1.1 200"), answered
        assert wait_for(lambda: model.idle, 20)
        model.tend()
        assert first.closed and model._before == []


def test_who_is_still_uploading_is_waited_for_at_the_end(tmp_path, monkeypatch):
    with deployed(tmp_path, monkeypatch) as model:
        upload = Upload(model.gateway.base_url, "chat/completions")
        assert wait_for(lambda: not model.idle, 20)
        assert b"Three." in upload.finish() and wait_for(lambda: model.idle, 20)


def test_a_client_that_leaves_in_the_middle_of_its_body_holds_no_session(tmp_path, monkeypatch):
    with deployed(tmp_path, monkeypatch) as model:
        upload = Upload(model.gateway.base_url, "chat/completions")
        assert wait_for(lambda: not model.idle, 20)
        upload.socket.close()
        assert wait_for(lambda: model.idle, 20)
