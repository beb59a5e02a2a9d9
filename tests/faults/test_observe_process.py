"""The `ajet observe` command and its signals: what a killed one left is gone on with, a living one's is let be, and it
ends as a service does."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ajet.record import EpisodeFiles
from tests.support.ajet_process import start
from tests.support.observed import ENDED, STREAM, endpoint

pytestmark = pytest.mark.slow
WHOLE = json.dumps({"id": "chatcmpl-9", "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}).encode()
ASK = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}]}
CHAT, SSE = "/v1/chat/completions", "text/event-stream"


class Observing:
    """A command that answers."""

    def __init__(self, folder: Path, url: str, log: str) -> None:
        self.log = folder / log
        self.process = start("observe", "--endpoint", url, "--exp-dir", str(folder), cwd=folder, log=self.log)
        while "Press Ctrl-C" not in self.said:
            assert self.process.poll() is None, self.said
            time.sleep(0.02)  # polls the output; nothing is assumed of how long it takes
        self.url = self.said.split("Observing on ")[1].split("/v1 ")[0]

    @property
    def said(self) -> str:
        return self.log.read_text()

    def ask(self, session: str, path: str = CHAT, **more) -> httpx.Response:
        return httpx.post(f"{self.url}/s/{session}{path}", json={**ASK, **more}, timeout=120)

    def say(self, **body) -> dict:
        return httpx.post(f"{self.url}/feedback", json=body, timeout=120).json()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@contextmanager
def observing(folder: Path, url: str, log: str = "log"):
    made = Observing(folder, url, log)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait(60)


def opened(folder: Path) -> list[Path]:
    return sorted(folder.glob("observed/serve/*/open/*"))


def recorded(folder: Path) -> list:
    found = sorted(folder.glob("observed/serve/*/episodes"))
    return [each for place in found for step in EpisodeFiles(place).steps("debug")
            for each in EpisodeFiles(place).read(step, "debug")]  # fmt: skip


class Held:
    """Replies of an endpoint that stand still, before their heads or after their first words, until they are let go."""

    def __init__(self, server) -> None:
        self.gone, self.begun, self._server = threading.Event(), threading.Semaphore(0), server

    def after_words(self) -> None:
        self._server.kind = SSE
        self._server.parts = [*STREAM[:2], self.stand, STREAM[2], b"data: [DONE]\n\n"]

    def before_heads(self) -> None:
        self._server.kind = self

    def __str__(self) -> str:
        self.stand()
        return SSE

    def stand(self) -> None:
        self.begun.release()
        assert self.gone.wait(120)


def asked(made: Observing, held: Held, others: ThreadPoolExecutor, *paths: str) -> list:
    """Requests whose replies stand still."""
    asked = [others.submit(made.ask, f"s{number}", path, stream=True) for number, path in enumerate(paths)]
    assert all(held.begun.acquire(timeout=60) for _ in paths)
    return asked


def test_what_a_killed_one_left_is_gone_on_with(tmp_path):
    with endpoint([WHOLE]) as (url, server):
        with observing(tmp_path, url) as first:
            assert first.ask("s0").content == WHOLE
            assert first.say(reply="chatcmpl-9", reward=0.5)["known"]  # the call is in the file by then
            held = Held(server)
            held.after_words()
            with ThreadPoolExecutor() as others:
                [cut] = asked(first, held, others, CHAT)
                assert first.end(signal.SIGKILL) == -signal.SIGKILL
                held.gone.set()
                assert isinstance(cut.exception(), httpx.HTTPError)
        [left] = opened(tmp_path)
        server.kind, server.parts = "application/json", [WHOLE]
        with observing(tmp_path, url, "log2") as second:
            assert "continuing 1 session of an earlier process" in second.said
            [moved] = opened(tmp_path)
            assert moved.name == left.name and moved.parent != left.parent
            second.ask("s0")
            assert second.say(session="s0", comment="again", end=True)["episode"] == left.stem
            assert second.end(signal.SIGTERM) == 0, second.said
    [episode] = recorded(tmp_path)
    assert episode.uuid == left.stem and episode.reward == 0.5 and len(episode.calls) == 2
    assert opened(tmp_path) == [] and "Traceback" not in second.said


def test_ctrl_c_under_load_tells_its_clients_and_shows_no_traceback(tmp_path):
    with endpoint([]) as (url, server), observing(tmp_path, url) as made, ThreadPoolExecutor(8) as others:
        held = Held(server)
        held.after_words()
        begun = asked(made, held, others, CHAT, CHAT)
        held.before_heads()
        waiting = asked(made, held, others, CHAT, "/v1/messages")
        code = made.end(signal.SIGINT)
        held.gone.set()
        assert [type(each.exception()) for each in begun] == [httpx.RemoteProtocolError] * 2
        told = [each.result() for each in waiting]
    assert [(each.status_code, each.headers["retry-after"]) for each in told] == [(503, "1")] * 2
    assert told[0].json()["error"]["code"] == "ended" and told[1].json()["type"] == "error"
    assert code == 130 and made.said.endswith("Interrupted.\n"), made.said
    assert "Traceback" not in made.said and "ASGI" not in made.said, made.said
    episodes = recorded(tmp_path)
    assert [len(each.calls) for each in episodes] == [2, 2] and opened(tmp_path) == []
    assert all(ENDED in call.error and call.finish == "aborted" for each in episodes for call in each.calls)


def test_sigterm_finishes_what_is_being_answered(tmp_path):
    with endpoint([]) as (url, server), observing(tmp_path, url) as made, ThreadPoolExecutor() as others:
        held = Held(server)
        held.after_words()
        [reply] = asked(made, held, others, CHAT)
        made.process.send_signal(signal.SIGTERM)
        while "the server stops: open requests" not in made.said:
            time.sleep(0.02)
        held.gone.set()
        assert reply.result().text.endswith("data: [DONE]\n\n")
        assert made.process.wait(60) == 0, made.said
    [episode] = recorded(tmp_path)
    assert episode.status == "completed" and "Traceback" not in made.said


def test_one_beside_a_living_one_lets_its_sessions_be(tmp_path):
    with endpoint([WHOLE]) as (url, _), observing(tmp_path, url) as first:
        first.ask("s0")
        assert first.say(reply="chatcmpl-9", liked=True)["known"]
        [file] = opened(tmp_path)
        with observing(tmp_path, url, "log2") as second:
            assert "continuing the session" not in second.said and opened(tmp_path) == [file]
            second.ask("s0")
            assert second.end(signal.SIGINT) == 130
        first.ask("s0")
        assert first.say(session="s0", end=True)["episode"] == file.stem
        assert first.end(signal.SIGTERM) == 0
    by_calls = {len(episode.calls): episode.uuid for episode in recorded(tmp_path)}
    assert by_calls.keys() == {1, 2} and by_calls[2] == file.stem
