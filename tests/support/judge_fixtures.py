"""A scripted OpenAI-compatible server for models that judge: what it says is a script, all else is real."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "sk-judge-do-not-show-4711"
Say = Callable[[dict[str, Any]], Any]
"""Of a request: the text of the reply, a whole reply, or (status, told)."""


class _Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(asked)
        said = self.server.say(asked)
        status, told = said if isinstance(said, tuple) else (200, said)
        if isinstance(told, str):
            told = {
                "choices": [{"message": {"role": "assistant", "content": told}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
            }
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        body = b'{"data": []}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class JudgeServer(ThreadingHTTPServer):
    """`say` answers; `seen` are the requests."""

    daemon_threads = True

    def __init__(self, say: Say) -> None:
        super().__init__(("127.0.0.1", 0), _Chat)
        self.say, self.seen = say, list[dict[str, Any]]()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # who asked has gone
            super().handle_error(request, client_address)


@contextmanager
def judge_server(say: Say) -> Iterator[JudgeServer]:
    """One that runs."""
    server = JudgeServer(say)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def says(verdict: str, reason: str = "so it is") -> str:
    """A verdict in the form that is asked for."""
    return json.dumps({"reason": reason, "verdict": verdict})


def material(asked: dict[str, Any]) -> list[str]:
    """The parts of a question, as a reader that knows the marks reads them."""
    text = asked["messages"][1]["content"]
    found, start = [], 0
    while (mark := re.compile(r"<([0-9a-f]{16})>\n").search(text, start)) is not None:
        end = text.index(f"\n</{mark[1]}>", mark.end())
        found.append(text[mark.end() : end])
        start = end
    return found


def ranks(asked: dict[str, Any]) -> str:
    """By the number that each attempt answered, the highest first; `?` is undecided."""
    if '"tiers"' not in asked["messages"][1]["content"]:
        return says("correct")
    labels = re.findall(r"Attempt (\w+):", asked["messages"][1]["content"])
    answers = [part.rpartition("It answered:\n")[2] for part in material(asked)[-len(labels) :]]
    told: dict[str, list[str]] = {}
    for label, answer in zip(labels, answers, strict=True):
        told.setdefault(answer, []).append(label)
    undecided = told.pop("?", [])
    tiers = [told[answer] for answer in sorted(told, key=int, reverse=True)]
    return json.dumps({"reason": "by number", "tiers": tiers, "undecided": undecided})
