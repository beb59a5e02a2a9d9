"""The proxy of `ajet observe` before an endpoint that a test plays, asked over its socket.

Only this module names internals of the proxy; what it records are episodes of `ajet.schema`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet.gateway.listener import listen
from ajet.record.secrets import Redactor
from ajet.schema.episode import Episode
from ajet_datagen.tracing.sources import read_sources
from ajet_observe import reply_copy, sessions
from ajet_observe.command import ObserveOptions, observe
from ajet_observe.relay import ENDED, ObservingRelay
from ajet_observe.server import RelayServer
from ajet_observe.sessions import ObservedSessions

__all__ = [
    "ENDED", "KEY", "STREAM", "Endpoint", "ObservingProxy", "count_traces", "endpoint", "limit_copied_replies",
    "limit_session_calls", "observed", "report_silence_from", "run_observe", "take_up_sessions", "wait_for_calls",
]  # fmt: skip

KEY = "sk-of-a-customer-0123456789"
CHUNKS = [
    {"id": "chatcmpl-1", "prompt_token_ids": [1, 2, 3], "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
    {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Thr"}, "token_ids": [7]}]},
    {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "ee."}, "token_ids": [8],
                                    "finish_reason": "stop"}]},
]  # fmt: skip
STREAM = [b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n" for chunk in CHUNKS]


class Endpoint(BaseHTTPRequestHandler):
    """Answers what the test's `parts` say, and keeps what it was asked."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append((dict(self.headers.items()), self.path, body))
        self.send_response(self.server.status)
        self.send_header("content-type", self.server.kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in self.server.parts:
            if callable(part):
                part()
                continue
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        if self.server.cut:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def endpoint(
    parts: Sequence[bytes | Callable[[], object]],
    *,
    kind: str = "application/json",
    cut: bool = False,
    status: int = 200,
) -> Iterator[tuple[str, Any]]:
    """Run an endpoint; yield its URL and its server."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.parts, server.kind, server.cut, server.status, server.asked = parts, kind, cut, status, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class ObservingProxy:
    """A proxy that answers; `episodes` and the `files` of their sessions are there once it has been stopped."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.episodes: list[Episode] = []
        self.files: list[Path] = []
        self._sessions = ObservedSessions(folder / "open", Redactor({}), self._take, folder / "late.jsonl", "run")
        listening = listen("127.0.0.1", 0, name="proxy", where="")
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._server = RelayServer(ObservingRelay(url, self._sessions, **options), self._sessions, listening)

    def ask(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        """Send a request with the customer's key."""
        return httpx.post(self.url + path, json=body, headers={"authorization": f"Bearer {KEY}", **headers}, timeout=60)

    def say(self, **body: Any) -> httpx.Response:
        """Send feedback."""
        return httpx.post(self.url + "/feedback", json=body, timeout=60)

    def adopt(self, files: Sequence[Path]) -> int:
        """Take up what an earlier process left; return the number of sessions."""
        return self._sessions.adopt(files)

    def stop(self) -> None:
        """End it: all sessions are episodes then."""
        self._server.stop()

    def _take(self, episode: Episode, file: Path) -> None:
        self.episodes.append(episode)
        self.files.append(file)


@contextmanager
def observed(url: str, folder: Path, **options: Any) -> Iterator[ObservingProxy]:
    """Run a proxy before the endpoint at `url`; `options` are the proxy's."""
    proxy = ObservingProxy(url, folder, **options)
    try:
        yield proxy
    finally:
        proxy.stop()


def take_up_sessions(files: Sequence[Path], folder: Path) -> tuple[int, list[Episode]]:
    """Take up what an earlier process left and end it; return the number of sessions and their episodes."""
    closed: list[Episode] = []
    taken = ObservedSessions(
        folder / "open", Redactor({}), lambda episode, _: closed.append(episode), folder / "late.jsonl"
    )
    count = taken.adopt(files)
    taken.close_idle(all_of_them=True)
    return count, closed


def run_observe(endpoint: str, **options: Any) -> int:
    """Run `ajet observe` in this process as far as its checks of address and key, which these tests end it at."""
    return observe(None, ObserveOptions(endpoint, **options))  # type: ignore[arg-type]


def count_traces(folder: Path) -> tuple[int, int]:
    """Return the numbers of traces that a reader of this record learns from, and of failed episodes."""
    found = read_sources([folder])
    return len(found.traces), found.failed


@contextmanager
def limit_copied_replies(size: int) -> Iterator[None]:
    """Within the block at most `size` bytes of a reply are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reply_copy, "MAX_COPIED", size)
        yield


@contextmanager
def report_silence_from(seconds: float) -> Iterator[None]:
    """Within the block a client that left is warned of if the endpoint had been silent for so long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reply_copy, "LOGGED_SILENCE_S", seconds)
        yield


@contextmanager
def limit_session_calls(count: int) -> Iterator[None]:
    """Within the block a session ends after `count` calls, and another one goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "MAX_CALLS", count)
        yield


@contextmanager
def wait_for_calls(seconds: float) -> Iterator[None]:
    """Within the block feedback on a reply that is not known waits so long for calls under way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "REPLY_WAIT_S", seconds)
        yield
