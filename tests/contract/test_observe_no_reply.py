"""`ajet observe` before an endpoint that answers no reply: its client gets what came, byte for byte, and the record
says what it was. Nothing of it is learned."""

import json
import threading
import time

import httpx
import pytest

from ajet.record import EpisodeFiles
from tests.support.observed import KEY, STREAM, count_traces, endpoint, observed, report_silence_from
from tests.support.odd_endpoint import odd_endpoint, warnings_said

ASK = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}]}
LOGIN = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Who are you?</body></html>"
BAD = b"<html>\n<head><title>502 Bad Gateway</title></head></html>"
REPLY = json.dumps({"id": "chatcmpl-9", "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}).encode()
CASES = {
    "login": (LOGIN, 200, "text/html", "not a reply of Chat Completions but an HTML page (Sign in)"),
    "bad gateway": (BAD, 502, "text/html", "refused with status 502: an HTML page (502 Bad Gateway)"),
    "empty": (b"", 200, "application/json", "not a reply of Chat Completions but an empty body"),
    "refused emptily": (b"", 503, "text/plain", "refused with status 503: an empty body"),
    "other JSON": (b'{"detail": "gone"}', 200, "application/json", 'choices: {"detail": "gone"}'),
    "no choices": (b'{"choices": []}', 200, "application/json", "choices cannot be read: []"),
    "an error": (b'{"error": {"message": "no quota"}}', 200, "application/json", "but an error: no quota"),
    "cut": (REPLY[:50], 200, "application/json", "after 50 characters"),
    "a login by redirect": (b"", 302, "text/html", "answered with a redirect with status 302: an empty body"),
    "an empty stream": (b"data: [DONE]\n\n", 200, "text/event-stream", "stream contained no reply"),
    "a cut stream": (STREAM[0], 200, "text/event-stream", "the endpoint broke off its reply"),
}


@pytest.fixture
def silent():
    with odd_endpoint("never answers") as server:
        yield server.url


@pytest.fixture
def words():
    with warnings_said() as said:
        yield said


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_reply_passes_unchanged_and_is_named(tmp_path, case):
    body, status, kind, said = CASES[case]
    with endpoint([body] if body else [], kind=kind, status=status) as (url, _), observed(url, tmp_path) as proxy:
        answer = proxy.ask({**ASK, "stream": "stream" in case})
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (status, body, kind)
    [episode] = proxy.episodes
    [call] = episode.calls
    assert said in call.error and call.finish == "error" and "Error" not in call.error
    assert episode.status == "failed" and (episode.failure.boundary, episode.failure.kind) == ("engine", "endpoint")
    assert not episode.scored and not any(line.sampled for line in episode.timelines)
    EpisodeFiles(tmp_path / "episodes").write(0, "debug", [episode])
    assert count_traces(tmp_path) == (0, 1), "nothing of it is learned"


def test_a_key_in_a_page_is_kept_nowhere_and_no_half_of_it(tmp_path):
    with endpoint([], kind="text/html") as (url, server), observed(url, tmp_path) as proxy:
        for length in (3, 100, 115):
            for server.status in (200, 502):
                server.parts = [b"<html><title>" + b"x" * length + KEY.encode() + b"</title></html>"]
                assert proxy.ask(ASK).content == server.parts[0]
        proxy.stop()
        kept = str(proxy.episodes) + proxy.files[0].read_text()
        assert len(proxy.episodes[0].calls) == 6
        assert not any(KEY[at : at + 8] in kept for at in range(len(KEY) - 8))


def test_an_endpoint_that_hangs_is_told_to_its_client_and_to_who_watches(tmp_path, words):
    held = threading.Event()
    with endpoint([held.wait]) as (url, _), observed(url, tmp_path / "whole", timeout=0.3) as proxy:
        pytest.raises(httpx.RemoteProtocolError, proxy.ask, ASK)  # its headers had come
        held.set()
    [call] = proxy.episodes[0].calls
    assert call.error.startswith("the endpoint broke off its reply: it sent nothing for 0.3 s ")
    held.clear()
    parts = [STREAM[0], STREAM[1], held.wait]
    with (
        endpoint(parts, kind="text/event-stream") as (url, _),
        observed(url, tmp_path / "stream", timeout=0.3) as proxy,
    ):
        pytest.raises(httpx.RemoteProtocolError, proxy.ask, {**ASK, "stream": True})
        held.set()
    [call] = proxy.episodes[0].calls
    assert "sent nothing for 0.3 s" in call.error and proxy.episodes[0].messages[call.reply]["content"] == "Thr"
    assert len([line for line in words if "sent nothing for 0.3 s" in line]) == 2


def test_an_endpoint_that_never_answers_is_a_504_in_the_clients_words(tmp_path, silent, words):
    with observed(silent, tmp_path, timeout=0.3) as proxy:
        for path, kind in (("/v1/chat/completions", "server_error"), ("/v1/messages", "timeout_error")):
            answer = proxy.ask({**ASK, "max_tokens": 5}, path)
            told = answer.json()["error"]
            assert (answer.status_code, told["type"]) == (504, kind)
            assert told["message"].startswith("the endpoint did not answer: it sent nothing for 0.3 s ")
    assert all(call.error == told["message"] for call in proxy.episodes[0].calls)
    assert len(words) == 1 and silent in words[0], "the same is not said all the time"


def test_a_client_that_gave_up_on_a_silent_endpoint_is_told_apart(tmp_path, silent, words):
    with report_silence_from(0.2), observed(silent, tmp_path) as proxy:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{proxy.url}/v1/chat/completions", json=ASK, timeout=0.4)
        until = time.monotonic() + 30
        while not words and time.monotonic() < until:
            time.sleep(0.01)
    assert "the endpoint had sent nothing for 0 s" in words[0]
    assert proxy.episodes[0].calls[0].finish == "aborted"
