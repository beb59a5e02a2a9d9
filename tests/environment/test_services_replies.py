"""Answers of environment services that cost their reader much more than their bytes."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ajet.environment.services import EnvService
from ajet.schema.errors import EnvironmentFailure
from tests.support.hostile_requests import objects


@contextmanager
def service(answer):
    class Answering(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield EnvService(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'{"data": ' + objects(4 << 20) + b"}", "500,000"),
        (b'{"data": [' + b"9" * 4_000 + b"]}", "JSON"),
        (b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "JSON"),
    ],
    ids=["values", "digits", "levels"],
)
def test_answer_beyond_the_bounds_is_a_failure(answer, why):
    with service(answer) as asked, pytest.raises(EnvironmentFailure, match=why):
        asked.task_ids("train")


def test_ordinary_answer_is_read():
    with service(b'{"data": ["a", 1]}') as asked:
        assert asked.task_ids("train") == ["a", "1"]
