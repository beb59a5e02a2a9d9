"""A word of feedback that was acknowledged is in one episode or in the file of late ones, whatever it came between."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.record.secrets import Redactor
from ajet_observe import sessions
from ajet_observe.feedback import SCORER, Feedback
from ajet_observe.relay import ObservingRelay
from ajet_observe.session import ObservedCall
from ajet_observe.sessions import ObservedSessions, RunningCall

ASK = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}]}
NAMES = st.sampled_from(["a", "b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), NAMES, st.integers(0, 6)),
        st.tuples(st.just("word"), NAMES, st.booleans()),
        st.tuples(st.just("of reply"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("idle"), st.booleans()),
    ),
    min_size=2,
    max_size=14,
)


def asked() -> ObservedCall:
    return ObservedCall(dialect="chat", agent="agent", sent=ASK, started=0.0)


def said(reply: str):
    return {"id": reply, "choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}


def replied(running: RunningCall, body) -> RunningCall:
    running.row.said = body
    return running


class Play:
    """Sessions to which things happen at once; what is written takes as many turns of the loop as `turns` says."""

    def __init__(self, folder: Path, turns: list[int]) -> None:
        self.closed, self.answers, self.begun = [], {}, Counter()
        self.open, self.late = folder / "open", folder / "late.jsonl"
        self.sessions = ObservedSessions(self.open, Redactor({}), self.keep, self.late, idle=-1.0)
        self.turns, self.taken = turns or [0], 0

    def keep(self, episode, file):
        self.closed.append(episode)
        asyncio.get_running_loop().call_soon(lambda: file.unlink(missing_ok=True))

    async def rest(self):
        self.taken += 1
        for _ in range(self.turns[self.taken % len(self.turns)]):
            await asyncio.sleep(0)

    async def to_thread(self, function, *arguments):
        await self.rest()
        result = function(*arguments)
        await self.rest()
        return result

    async def call(self, name, turns):
        reply = f"reply {self.begun.total()}"
        self.begun[name] += 1
        running = await self.sessions.begin(name, asked())
        for _ in range(turns):
            await asyncio.sleep(0)
        await self.sessions.end(replied(running, said(reply)))

    async def word(self, number, end, **about):
        known = self.begun[about["session"]] > 0 if "session" in about else about["reply"] < self.begun.total()
        if "reply" in about:
            about = {"reply": f"reply {about['reply']}"}
        given = Feedback(time.time(), comment=f"word {number}", end=end, **about)
        answer = await self.sessions.add_feedback(given)
        assert answer["recorded"] and (answer["known"] or not known), (given, answer)
        self.answers[f"word {number}"] = answer

    async def all(self, steps):
        running = []
        for number, (kind, *more) in enumerate(steps):
            if kind == "call":
                running.append(asyncio.ensure_future(self.call(*more)))
            elif kind == "idle":
                self.sessions.close_idle(all_of_them=more[0])
            else:
                about = {"session": more[0]} if kind == "word" else {"reply": more[0]}
                running.append(asyncio.ensure_future(self.word(number, more[1], **about)))
            await self.rest()
        await asyncio.gather(*running)
        self.sessions.close_idle(all_of_them=True)
        await asyncio.sleep(0)


def plain_append(path: Path, lines) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(steps=STEPS, turns=st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_no_word_is_lost_whatever_it_comes_between(steps, turns):
    with tempfile.TemporaryDirectory() as folder:
        play = Play(Path(folder), turns)
        with patch.object(sessions, "append_lines", plain_append), patch.object(asyncio, "to_thread", play.to_thread):
            asyncio.run(play.all(steps))
        late = [json.loads(line) for line in play.late.read_text().splitlines()] if play.late.exists() else []
        assert not list(play.open.glob("*"))
    kept = {each.uuid: each.verdict.details[SCORER] if each.verdict else [] for each in play.closed}
    in_time = Counter(row["comment"] for rows in kept.values() for row in rows)
    assert in_time + Counter(row["comment"] for row in late) == Counter(list(play.answers))
    for word, answer in play.answers.items():
        if "session" in answer:
            assert word in [row["comment"] for row in kept[answer["episode"]]]
        else:
            assert [row.get("episode") for row in late if row["comment"] == word] == [answer.get("episode")]
    replies = Counter(call.extra["id"] for episode in play.closed for call in episode.calls)
    assert replies == Counter(f"reply {number}" for number in range(play.begun.total()))


def test_a_word_that_waits_while_another_ends_its_session_is_late_and_not_the_next_ones(tmp_path):
    play = Play(tmp_path, [0])

    async def both():
        await play.call("a", 0)
        ends = asyncio.ensure_future(play.word(1, True, session="a"))
        waits = asyncio.ensure_future(play.word(2, False, session="a"))
        await ends
        await play.call("a", 0)  # of that name's next session
        await waits
        play.sessions.close_idle(all_of_them=True)

    asyncio.run(both())
    first, second = play.closed
    assert play.answers["word 2"] == {"recorded": True, "known": True, "episode": first.uuid}
    assert [row["comment"] for row in first.verdict.details[SCORER]] == ["word 1"] and second.verdict is None
    assert json.loads(play.late.read_text())["episode"] == first.uuid and not list(play.open.iterdir())


def test_a_session_that_is_over_while_a_call_runs_takes_words_about_its_replies(tmp_path):
    play = Play(tmp_path, [0])

    async def parted():
        await play.call("a", 0)
        running = await play.sessions.begin("a", asked())
        await play.word(1, True, session="a")
        await play.word(2, False, reply=0)  # a reply of the session that is over
        await play.word(3, False, session="a")  # nothing else has its name yet
        assert not play.closed
        await play.sessions.end(replied(running, said("reply 1")))

    asyncio.run(parted())
    [episode] = play.closed
    assert [row["comment"] for row in episode.verdict.details[SCORER]] == ["word 1", "word 2", "word 3"]
    assert len(episode.calls) == 2 and not play.late.exists()


def test_a_reply_without_a_word_in_it_is_known(tmp_path):
    play = Play(tmp_path, [0])

    async def empty():
        running = await play.sessions.begin("a", asked())
        await play.sessions.end(replied(running, {"id": "reply 0", "choices": []}))
        assert (await play.sessions.add_feedback(Feedback(1.0, reply="reply 0", liked=False)))["session"] == "a"

    asyncio.run(empty())


def test_a_word_that_cannot_be_written_is_not_acknowledged_and_ends_no_session(tmp_path):
    play = Play(tmp_path, [0])
    full = patch.object(sessions, "append_lines", side_effect=OSError(28, "No space left on device"))

    async def no_room():
        running = await play.sessions.begin("a", asked())
        with full, pytest.raises(OSError, match="No space left"):
            await play.word(1, True, session="a")
        await play.sessions.end(replied(running, said("reply 0")))
        assert not play.closed
        await play.word(2, True, session="a")

    asyncio.run(no_room())
    [episode] = play.closed
    assert [row["comment"] for row in episode.verdict.details[SCORER]] == ["word 2"]


def test_a_client_is_told_that_its_word_could_not_be_written(tmp_path):
    proxy = ObservingRelay(
        "http://127.0.0.1:9/v1", ObservedSessions(tmp_path, Redactor({}), lambda *_: None, tmp_path / "late")
    )
    body = json.dumps({"session": "a", "liked": True}).encode()
    scope = {"type": "http", "method": "POST", "raw_path": b"/feedback", "headers": [], "state": {}}
    head = {"headers": [(b"content-type", b"application/json")]}
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    with patch.object(sessions, "append_lines", side_effect=OSError(28, "No space left on device")):
        asyncio.run(proxy({**scope, **head}, receive, send))
    assert sent[0]["status"] == 507 and b"No space left on device" in sent[1]["body"]


def test_a_session_that_a_word_had_ended_is_not_gone_on_with_after_a_kill(tmp_path):
    """Nor an older one of two that have the same name."""
    left = tmp_path / "left"
    left.mkdir()
    files = []
    for began, rows in ((1.0, []), (2.0, [{"feedback": {"at": 2.5, "session": "a", "end": True}}]), (3.0, [])):
        file = left / f"{uuid.uuid4().hex}.jsonl"
        call = {"dialect": "chat", "agent": "agent", "sent": ASK, "said": said("r"), "problem": "", "finish": None,
                "started": began, "ended": began}  # fmt: skip
        rows = [{"session": "a", "number": 0, "began": began}, call, *rows]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        files.append(file)
    closed = []
    made = ObservedSessions(
        tmp_path / "open", Redactor({}), lambda episode, _: closed.append(episode.started), tmp_path / "l"
    )
    assert made.adopt(files) == 3 and sorted(closed) == [1.0, 2.0]
    assert made.find("a").began == 3.0
