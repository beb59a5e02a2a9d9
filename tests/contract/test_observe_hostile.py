"""`ajet observe` and what it must not do: mix clients, keep keys, change what passes, stop at what it cannot read."""

import gzip
import json
import re
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ajet.record import EpisodeFiles
from ajet.schema.errors import UserError
from tests.support.observed import (
    STREAM,
    Endpoint,
    endpoint,
    limit_copied_replies,
    limit_session_calls,
    observed,
    run_observe,
    take_up_sessions,
    wait_for_calls,
)

REPLY = json.dumps({"id": "chatcmpl-9", "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}).encode()
ASK = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}]}
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def post(proxy, content, path=CHAT, **headers):
    return httpx.post(proxy.url + path, content=content, headers={**JSON, **headers}, timeout=60)


def test_a_cookie_that_the_endpoint_gives_one_client_is_not_sent_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(Endpoint, "end_headers", _with_cookie)
    with endpoint([REPLY]) as (url, server), observed(url, tmp_path) as proxy:
        assert proxy.ask(ASK).headers["set-cookie"] == "sid=of-the-first; Path=/"
        proxy.ask(ASK, cookie="mine=1")
        proxy.ask(ASK)
    assert [asked.get("Cookie", asked.get("cookie")) for asked, _, _ in server.asked] == [None, "mine=1", None]


def _with_cookie(self):
    self.send_header("set-cookie", "sid=of-the-first; Path=/")
    super(Endpoint, self).end_headers()


def test_a_path_is_passed_as_it_was_sent_and_leads_nowhere_else(tmp_path):
    with endpoint([REPLY]) as (url, server), observed(url, tmp_path) as proxy:
        post(proxy, b"{}", "/v1/models/a%2Fb%3Fc?d=e")
        assert post(proxy, b"{}", "/v1/%2e%2e/admin").status_code == 404
    assert [path for _, path, _ in server.asked] == ["/v1/models/a%2Fb%3Fc?d=e"]


def test_what_cannot_be_read_passes_and_its_session_ends(tmp_path):
    half = b'{"messages": [{"role": "user", "content": "\\ud800 \\ud83d\\ude00"}]}'
    bodies = [
        b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        half,
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1' + b"0" * 400 + b"}",
        b"no JSON",
    ]
    with endpoint([REPLY]) as (url, server), observed(url, tmp_path, token_ids=True) as proxy:
        for body in bodies:
            assert post(proxy, body).content == REPLY
        assert post(proxy, b'{"session": "anonymous", "comment": "\\ud800", "end": true}', "/feedback").json()["known"]
    assert len(server.asked) == len(bodies)
    [episode] = proxy.episodes
    assert "\ufffd \U0001f600" in [message["content"] for message in episode.messages]
    files = EpisodeFiles(tmp_path / "episodes")
    files.write(0, "debug", [episode])
    assert len(files.read(0, "debug")[0].calls) == len(bodies)


def test_events_that_cannot_be_read_pass(tmp_path):
    odd = [{"choices": [{"index": None, "delta": {}}]}, {"choices": [{"delta": {"tool_calls": [{"index": 5000}]}}]}]
    events = [STREAM[0], *(b"data: " + json.dumps(each).encode() + b"\n\n" for each in odd), *STREAM[1:]]
    with endpoint(events, kind="text/event-stream") as (url, _), observed(url, tmp_path) as proxy:
        assert proxy.ask({**ASK, "stream": True}).content == b"".join(events)
    [episode] = proxy.episodes
    assert episode.messages[episode.calls[0].reply]["content"] == "Three."


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (f"{CHAT}?key=SECRET", {}),
        (CHAT, {"cookie": "a=1; session=SECRET"}),
        (CHAT, {"x-portkey-api-key": "SECRET"}),
        (CHAT, {"authorization": "Bearer SECRET"}),
    ],
)
def test_a_key_that_is_quoted_is_kept_nowhere_and_no_part_of_it(tmp_path, path, headers):
    secret = "Zx81-" + "q7" * 20
    quoted = [json.dumps({"error": "x" * length + secret}).encode() for length in (3, 470)]
    for quote in quoted:
        with endpoint([quote], status=400) as (url, _), observed(url, tmp_path) as proxy:
            given = {name: value.replace("SECRET", secret) for name, value in headers.items()}
            assert post(proxy, json.dumps(ASK), path.replace("SECRET", secret), **given).content == quote
            proxy.stop()
            kept = str(proxy.episodes) + proxy.files[0].read_text()
        assert "status 400" in kept and secret[:12] not in kept


def test_a_word_for_a_key_is_no_key(tmp_path):
    with endpoint([REPLY]) as (url, _), observed(url, tmp_path) as proxy:
        body = {"messages": [{"role": "user", "content": "Is there anything?"}]}
        proxy.ask(body, authorization="Bearer anything")
    assert proxy.episodes[0].messages[0]["content"] == "Is there anything?"


def test_of_a_reply_that_unpacks_without_end_no_more_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(Endpoint, "end_headers", _packed)
    packed = gzip.compress(b" " * (1 << 24))
    with limit_copied_replies(1 << 16), endpoint([packed]) as (url, _), observed(url, tmp_path) as observing:
        request = httpx.Request("POST", observing.url + CHAT, json=ASK)
        with httpx.Client(timeout=60) as client:
            tracemalloc.start()
            try:
                reply = client.send(request, stream=True)
                assert b"".join(reply.iter_raw()) == packed
                reply.close()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
    [call] = observing.episodes[0].calls
    assert call.finish == "error" and "is larger than" in call.error
    assert peak < 1 << 23, "half of what it unpacks to"


def _packed(self):
    self.send_header("content-encoding", "gzip")
    super(Endpoint, self).end_headers()


def test_a_session_that_never_rests_ends_all_the_same(tmp_path):
    with limit_session_calls(2), endpoint([]) as (url, server), observed(url, tmp_path) as proxy:
        for name in ("chatcmpl-1", "chatcmpl-2", "chatcmpl-3"):
            server.parts = [REPLY.replace(b"chatcmpl-9", name.encode())]
            assert proxy.ask(ASK, "/s/busy" + CHAT).content == server.parts[0]
            assert proxy.say(reply=name, comment="good").json()["known"]  # it waits for the call's end
    assert [(len(episode.calls), episode.repeat) for episode in proxy.episodes] == [(2, 0), (1, 1)]


def test_feedback_of_strangers_and_numbers_that_are_none(tmp_path):
    with endpoint([REPLY]) as (url, _), observed(url, tmp_path) as proxy:
        proxy.ask(ASK, "/s/mine" + CHAT)
        said = b'{"session": "mine", "reward": 1}'
        evil = {"origin": "http://evil.example:9000", "host": "evil.example:9000"}
        assert post(proxy, said, "/feedback", **evil).status_code == 403
        assert post(proxy, said.replace(b"}", b"0" * 400 + b"}"), "/feedback").status_code == 400
    assert proxy.episodes[0].verdict is None


def test_feedback_on_an_unknown_reply_is_answered_while_calls_go_on_coming(tmp_path):
    begun, over = threading.Event(), threading.Event()
    parts = [begun.set, over.wait, REPLY]
    with (
        wait_for_calls(0.0),
        endpoint(parts) as (url, _),
        observed(url, tmp_path) as proxy,
        ThreadPoolExecutor() as pool,
    ):
        asking = pool.submit(proxy.ask, ASK, "/s/busy" + CHAT)
        try:
            assert begun.wait(60)
            told = proxy.say(reply="chatcmpl-of-yesterday", liked=True).json()
            assert told == {"recorded": True, "known": False} and not asking.done()
        finally:
            over.set()
        assert asking.result().content == REPLY


def test_a_call_is_counted_where_the_disk_takes_nothing(tmp_path):
    (tmp_path / "open").write_text("no folder")
    with endpoint([REPLY]) as (url, _), observed(url, tmp_path) as proxy:
        assert proxy.ask(ASK, "/s/mine" + CHAT).content == REPLY
    assert len(proxy.episodes[0].calls) == 1 and proxy.episodes[0].status == "completed"


def test_a_file_that_was_never_written_stops_no_start(tmp_path):
    for name, text in (("a", ""), ("b", '{"session": "half'), ("c", "[]\n")):
        (tmp_path / f"{name}.jsonl").write_text(text)
    assert take_up_sessions(sorted(tmp_path.glob("*.jsonl")), tmp_path) == (0, [])
    assert [file.name for file in tmp_path.glob("*.jsonl")] == ["c.jsonl"]


ROWS = [
    {"session": "a", "number": 0, "began": 1.0},
    {
        "dialect": "chat", "agent": "agent", "sent": ASK, "said": json.loads(REPLY), "problem": "", "finish": None,
        "started": 1.0, "ended": 2.0,
    },
    {"feedback": {"at": 3.0, "session": "a", "reward": 1.0, "comment": "good"}},
]  # fmt: skip
JUNK = [None, "text", 1e400, -1e300, 10**40, True, [], [[]], {}, {"a": 1}, "\ud83d", "../../x"]


def test_junk_in_a_left_session_stops_no_start(tmp_path):
    number = 0
    for at, row in enumerate([*ROWS[:2], ROWS[2]["feedback"]]):
        for name in row:
            for junk in JUNK:
                number += 1
                (tmp_path / str(number)).mkdir()
                rows = list(ROWS)
                rows[at] = {**row, name: junk} if at < 2 else {"feedback": {**row, name: junk}}
                for file, lines in (("0.jsonl", rows), ("1.jsonl", ROWS)):
                    text = "".join(json.dumps(line) + "\n" for line in lines)
                    (tmp_path / str(number) / file).write_text(text)
                _, closed = take_up_sessions(sorted((tmp_path / str(number)).iterdir()), tmp_path)
                assert 1 <= len(closed) <= 2, (name, junk)
                files = EpisodeFiles(tmp_path / str(number) / "episodes")
                files.write(0, "debug", closed)
                assert len(files.recorded(0, "debug")) == len(closed)


def test_left_sessions_behind_links_are_not_taken(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "open").symlink_to(tmp_path / "mine")
    assert take_up_sessions([tmp_path / "run" / "open" / "a.jsonl"], tmp_path) == (0, [])
    assert (tmp_path / "mine" / "a.jsonl").exists()


@pytest.mark.parametrize("key", ["", "short", "with a blank, but long", "hunter2-hunter2-"])
def test_a_key_that_is_none_opens_no_door(monkeypatch, key):
    monkeypatch.setenv("AJET_ADMIN_KEY", key)
    with pytest.raises(UserError, match="is not a valid key"):
        run_observe("http://127.0.0.1:8000/v1", host="0.0.0.0")


def test_an_address_that_is_refused_is_not_shown_where_it_may_hold_a_secret(tmp_path):
    for refused in (
        "http://me:hunter2@here:80/v1",
        "http://:hunter2@here",
        "me:hunter2@here:80",
        "http://here?key=hunter2",
    ):
        with pytest.raises(UserError) as told:
            run_observe(refused)
        assert "hunter2" not in str(told.value) + str(vars(told.value)), refused
    for refused in ("here:80/v1", "http://[::1"):
        with pytest.raises(UserError, match=f"^{re.escape(refused)} is not the URL"):
            run_observe(refused)
