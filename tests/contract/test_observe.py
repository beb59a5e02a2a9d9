"""`ajet observe` before endpoints of every dialect, and before one that dies, breaks off or is left alone."""

import json
import threading
import uuid

import httpx
import numpy as np
import pytest

from ajet.record import EpisodeFiles
from ajet.schema.call import full_ids
from tests.support.gateways import ADD, ASK, ScriptedReply, start_gateway
from tests.support.observed import KEY, STREAM, endpoint, observed


def said(episode):
    return [[episode.messages[at]["content"] for at in call.messages] for call in episode.calls]


def test_every_dialect_is_recorded_as_it_was_said(tmp_path):
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    script = [ScriptedReply("Three."), ScriptedReply(call), ScriptedReply("Four."), ScriptedReply("Five.")]
    with start_gateway(script * 2) as made, observed(made.base_url, tmp_path) as proxy:
        session = made.open()
        to = session.endpoint("agent")
        again = [*ASK, {"role": "assistant", "content": "Three."}, ASK[1]]
        three = [{"role": "user", "content": "2 + 3?"}]
        asks = [
            ("/v1/chat/completions", {"messages": ASK}),
            (
                "/v1/chat/completions",
                {"messages": again, "tools": [ADD]},
            ),
            ("/v1/responses", {"instructions": "Be brief.", "input": "Two and two?"}),
            (
                "/v1/messages",
                {"max_tokens": 50, "system": "Be brief.", "messages": three},
            ),
        ]
        for stream in (False, True):
            for path, body in asks:
                head = {"authorization": f"Bearer {to.api_key}", "x-ajet-session": f"stream {stream}"}
                reply = proxy.ask({"model": "ajet", "stream": stream, **body}, path, **head)
                assert reply.status_code == 200 and ("event-stream" in reply.headers["content-type"]) == stream
        session.close()
    assert [episode.task.task_id for episode in proxy.episodes] == ["stream False", "stream True"]
    for episode in proxy.episodes:
        assert episode.status == "completed" and not episode.task.metadata["exact"]
        assert [call.finish for call in episode.calls] == ["stop", "tool_calls", "stop", "stop"]
        replies = [episode.messages[call.reply] for call in episode.calls]
        assert [reply["content"] for reply in replies] == ["Three.", None, "Four.", "Five."]
        assert json.loads(replies[1]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
        question = [message["content"] for message in ASK]
        assert said(episode) == [
            question, [*question, "Three.", question[1]], ["Be brief.", "Two and two?"], ["Be brief.", "2 + 3?"],
        ]  # fmt: skip
        assert [call.tools for call in episode.calls] == [None, 0, None, None]
        assert len(episode.messages) == 8  # each once, however often it was sent
    assert to.api_key not in json.dumps([str(episode) for episode in proxy.episodes])


def test_bytes_pass_unchanged_and_ids_are_kept_where_there_are_any(tmp_path):
    events = [*STREAM, b"data: [DONE]\r\n\r\n"]
    with endpoint(events, kind="text/event-stream") as (url, server), observed(url, tmp_path) as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "1 + 2?"}], "stream": True, "mine": [1]}
        raw = json.dumps(body, indent=3).encode()
        head = {"authorization": f"Bearer {KEY}", "x-ajet-session": "s", "x-mine": "yes"}
        reply = httpx.post(f"{proxy.url}/v1/chat/completions?a=b", content=raw, headers=head)
        assert reply.content == b"".join(STREAM) + b"data: [DONE]\r\n\r\n"
        asked, path, sent = server.asked[0]
        assert sent == raw and path == "/v1/chat/completions?a=b"
        assert asked["authorization"] == f"Bearer {KEY}" and asked["x-mine"] == "yes"
        assert "x-ajet-session" not in asked
    [episode] = proxy.episodes
    [call] = episode.calls
    assert full_ids(episode.calls, 0).tolist() == [1, 2, 3, 7, 8] and call.response_ids.tolist() == [7, 8]
    assert episode.task.metadata == {"observed": True, "exact": True} and call.terms.written and not call.trained
    assert call.extra["settings"] == {"mine": [1]} and call.extra["id"] == "chatcmpl-1"
    files = EpisodeFiles(tmp_path / "episodes")
    files.write(0, "debug", [episode])
    [again] = files.read(0, "debug")
    assert np.array_equal(again.calls[0].suffix_ids, [1, 2, 3]) and again.messages == episode.messages


@pytest.mark.parametrize("words", [{}, {"x-api-key": KEY}])
def test_no_key_is_kept(tmp_path, words):
    refusal = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}."}}).encode()
    with endpoint([refusal], status=401) as (url, _), observed(url, tmp_path) as proxy:
        mine = [{"type": "mcp", "server_url": "http://tools", "authorization": "a-token-of-mine"}]
        body = {"model": "m", "input": f"my key is {KEY}", "tools": mine}
        assert KEY in proxy.ask(body, "/v1/responses", **words).text  # that is the client's own
        proxy.stop()
        [episode], [file] = proxy.episodes, proxy.files
        assert episode.status == "failed" and episode.failure.boundary == "engine"
        assert "status 401" in episode.calls[0].error
        kept = file.read_text() + str(episode)
        assert KEY not in kept and "a-token-of-mine" not in file.read_text() + str(episode.calls[0].extra)
        assert episode.task.task_id.startswith("key-")


def test_a_dead_endpoint_and_a_stream_that_breaks_off_are_data(tmp_path):
    with observed("http://127.0.0.1:9/v1", tmp_path / "dead") as proxy:
        body = {"model": "m", "messages": ASK, "max_tokens": 5}
        assert proxy.ask(body).status_code == 502
        answer = proxy.ask(body, "/v1/messages", **{"x-ajet-session": "claude"})
        assert answer.json()["type"] == "error"
    assert [episode.failure.boundary for episode in proxy.episodes] == ["engine", "engine"]
    with endpoint(STREAM[:2], kind="text/event-stream", cut=True) as (url, _), observed(url, tmp_path) as proxy:
        pytest.raises(httpx.RemoteProtocolError, proxy.ask, {**body, "stream": True})
    [episode] = proxy.episodes
    [call] = episode.calls
    assert episode.messages[call.reply]["content"] == "Thr" and call.finish == "error"
    assert "broke off" in call.error and episode.failure.boundary == "engine"


def test_a_client_that_leaves_frees_the_endpoint_and_is_recorded(tmp_path):
    gone = threading.Event()
    parts = [STREAM[0], STREAM[1], gone.wait]
    with endpoint(parts, kind="text/event-stream") as (url, _), observed(url, tmp_path) as proxy:
        body = {"model": "m", "messages": ASK, "stream": True}
        with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=body, timeout=60) as reply:
            pieces = reply.iter_raw()
            got = next(pieces)
            while b"Thr" not in got:
                got += next(pieces)
        assert proxy.say(reply="chatcmpl-1", liked=False, end=True).json()["known"]  # it waits for the call's end
        gone.set()
    [episode] = proxy.episodes
    [call] = episode.calls
    assert call.finish == "aborted" and "client disconnected" in call.error and episode.failure.boundary == "agent"
    assert episode.messages[call.reply]["content"] == "Thr" and episode.verdict.reward == 0.0


def test_feedback_is_a_reward_and_late_feedback_finds_its_episode(tmp_path):
    whole = json.dumps({"id": "chatcmpl-9", "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]})
    with endpoint([whole.encode()]) as (url, _), observed(url, tmp_path, key="k" * 20) as proxy:
        proxy.ask({"model": "m", "messages": ASK}, "/s/mine/v1/chat/completions")
        bearer = {"authorization": "Bearer " + "k" * 20}
        told = {"session": "mine", "liked": True, "corrected": "3", "comment": "nearly"}
        assert httpx.get(f"{proxy.url}/feedback").headers["allow"] == "POST"
        assert httpx.post(f"{proxy.url}/feedback", json=told).status_code == 401
        assert httpx.post(f"{proxy.url}/feedback", json=told, headers=bearer).json()["episode"]
        as_text = {**bearer, "content-type": "text/plain"}
        assert httpx.post(f"{proxy.url}/feedback", content=json.dumps(told), headers=as_text).status_code == 415
        json_head = {**bearer, "content-type": "application/json"}
        for wrong in ({"liked": True}, {"session": "mine"}, {"session": "mine", "reward": float("nan")}, {"stars": 5}):
            refused = httpx.post(f"{proxy.url}/feedback", content=json.dumps(wrong), headers=json_head)
            assert refused.status_code == 400, wrong
        httpx.post(f"{proxy.url}/feedback", json={"session": "mine", "end": True}, headers=bearer)
        late = httpx.post(f"{proxy.url}/feedback", json={"reply": "chatcmpl-9", "reward": 0.25}, headers=bearer).json()
        unknown = httpx.post(f"{proxy.url}/feedback", json={"session": "none", "reward": 1}, headers=bearer).json()
    [episode] = proxy.episodes
    assert episode.reward == 1.0 and episode.succeeded and episode.scored
    assert episode.verdict.details["feedback"][0]["corrected"] == "3"
    assert late == {"recorded": True, "known": True, "episode": episode.uuid} and not unknown["known"]
    rows = [json.loads(line) for line in (tmp_path / "late.jsonl").read_text().splitlines()]
    assert [row.get("episode") for row in rows] == [episode.uuid, None] and rows[0]["reward"] == 0.25


def test_what_a_killed_proxy_left_is_gone_on_with(tmp_path):
    whole = json.dumps({"id": "chatcmpl-9", "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]})
    with endpoint([whole.encode()]) as (url, _):
        with observed(url, tmp_path / "one") as first:
            first.ask({"model": "m", "messages": ASK}, "/s/mine/v1/chat/completions")
            first.say(session="mine", reward=0.5)
            [file] = (tmp_path / "one" / "open").iterdir()
            left = tmp_path / f"{uuid.uuid4().hex}.jsonl"
            left.write_bytes(file.read_bytes() + b'{"half')
        with observed(url, tmp_path / "two") as second:
            assert second.adopt([left]) == 1 and not left.exists()
            second.ask(
                {"model": "m", "messages": [*ASK, {"role": "assistant", "content": "4"}, ASK[1]]},
                "/s/mine/v1/chat/completions",
            )
    [episode] = second.episodes
    assert len(episode.calls) == 2 and episode.reward == 0.5 and episode.calls[0].extra["id"] == "chatcmpl-9"
