"""Sessions: the conversations of observed agents, each of which becomes an episode.

Invariant: a call that has ended, and a word of feedback, are in the session's file before they are counted, so that a
killed proxy loses none; the file goes when the episode is on the disk. A name stands for one open session at a time:
what is said under it after its end begins another. On one event loop.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger

from ajet.context_tracker.timeline_making import timelines
from ajet.gateway.capture import Entry, Recorder, common_start
from ajet.gateway.observing.feedback import Feedback, verdict_of
from ajet.gateway.observing.replies import Answer, Said, Tokens, read_reply
from ajet.gateway.observing.requests import Sent, read_request
from ajet.record.files import append_lines, heal, read_rows
from ajet.record.secrets import Redactor
from ajet.schema.call import Call, FinishReason, Terms, full_ids
from ajet.schema.episode import Episode, Failure
from ajet.schema.errors import UserError
from ajet.schema.messages import text_of
from ajet.schema.task import Task

CLIENT_LEFT = "the client left before the reply was whole"
LOOKED_AT = 8
"""Calls before one whose tokens it may share, beside the one that it goes on from."""
REMEMBERED = 100_000
"""Sessions and replies that have ended, by whose names feedback still finds its episode."""
MOST_CALLS, MOST_BYTES = 1000, 256 << 20
"""Of a session and its file; then it is over, and what is said under its name begins another: a client that names none
and never rests would fill the memory otherwise."""
PATIENCE = 30.0
"""Seconds for which feedback on a reply that nobody knows waits for calls that are under way."""


@dataclass(slots=True)
class Asked:
    """A call under way."""

    dialect: str
    agent: str
    body: Mapping[str, Any]
    sent: Sent
    entry: Entry


@dataclass(slots=True)
class Ended:
    """How a call ended. `body`: the reply, whole or what came of it; `problem`: "" where it is whole."""

    body: Any
    problem: str = ""
    finish: FinishReason | None = None
    """None: as the reply says."""


class Session:
    """One that is open."""

    def __init__(self, name: str, number: int, file: Path, began: float) -> None:
        self.name, self.number, self.file = name, number, file
        self.uuid = file.stem
        self.began = self.touched = began
        self.under_way = 0
        self.calls = self.bytes = 0
        """That have ended; of the file."""
        self.over = False
        """Said to be over: it ends with what is under way."""
        self.feedback: list[Feedback] = []
        self.turn = asyncio.Lock()
        self._recorder = Recorder()
        self._responses: dict[str, Call] = {}

    def begin(self, dialect: str, body: Mapping[str, Any], agent: str) -> Asked:
        """A call is asked."""
        sent = read_request(dialect, body)
        return Asked(dialect, agent, body, sent, self._enter(sent, agent, dialect))

    def settle(self, asked: Asked, ended: Ended) -> Answer:
        """Settle a call that has ended."""
        self.calls += 1
        broken = ended.body is None and bool(ended.problem)
        answer = Answer("") if broken else read_reply(asked.dialect, ended.body)
        problem = ended.problem or answer.problem
        choices = answer.choices or (None,)
        entries = [asked.entry, *(self._enter(asked.sent, asked.agent, asked.dialect) for _ in choices[1:])]
        for entry, said in zip(entries, choices, strict=True):
            self._settle(entry, said, answer, problem, ended)
        if asked.entry.call.reply is not None and answer.id:
            self._responses[answer.id] = asked.entry.call
        return answer

    def knows(self, reply: str) -> bool:
        """Whether the reply of this id is one of its own."""
        return reply in self._responses

    def episode(self, run: str) -> Episode:
        """All of it."""
        capture = self._recorder.capture
        calls, messages = capture.calls, capture.messages
        lines, untrained = timelines(calls)
        asked = next((text_of(messages[at]) for call in calls for at in call.messages if _asks(messages[at])), "")
        exact = bool(calls) and all(call.extra.get("exact", False) for call in calls)
        task = Task(main_query=asked, task_id=self.name, metadata={"observed": True, "exact": exact})
        last = calls[-1] if calls else None
        failure = None
        if last is not None and last.error:
            left = last.finish == "aborted"
            failure = Failure("agent" if left else "engine", "left" if left else "endpoint", last.error)
        return Episode(
            self.uuid,
            task,
            self.number,
            0,
            "debug",
            group=self.name,
            run=run,
            status="failed" if failure else "completed",
            failure=failure,
            verdict=verdict_of(self.feedback),
            calls=calls,
            messages=messages,
            tools=capture.tools,
            timelines=lines,
            untrained=untrained,
            started=self.began,
            ended=max((call.ended for call in calls), default=self.began),
        )

    def _enter(self, sent: Sent, agent: str, dialect: str) -> Entry:
        messages: Sequence[dict[str, Any]] = sent.messages
        extra: dict[str, Any] = {"model": sent.model, "dialect": dialect, "settings": dict(sent.settings)}
        if sent.follows is not None:
            before = self._responses.get(sent.follows)
            if before is not None:
                messages = [*self._conversation(before, messages), *messages]
                messages.sort(key=lambda each: each.get("role") != "system")
            else:
                extra["follows_unseen"] = True
        if sent.raw is not None:
            extra["sent"] = dict(sent.raw)
        recorder = self._recorder
        entry = recorder.enter(
            agent=agent,
            target=agent,
            trained=False,
            messages=messages,
            tools=sent.tools,
            match=recorder.conversations.match(agent, messages),
            prompt=None,
            temperature=_number(sent.settings.get("temperature"), 1.0),
        )
        entry.call.extra |= extra
        return entry

    def _conversation(self, before: Call, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What went before a response, and itself; instructions are those of the new request."""
        messages = self._recorder.capture.messages
        told = [messages[at] for at in before.messages] + ([messages[before.reply]] if before.reply is not None else [])
        return [each for each in told if each.get("role") != "system"] if any(map(_instructs, own)) else told

    def _settle(self, entry: Entry, said: Said | None, answer: Answer, problem: str, ended: Ended) -> None:
        call = entry.call
        finish = ended.finish or ("error" if said is None or problem else said.finish)
        call.extra |= {"id": answer.id, "usage": dict(answer.usage), "exact": False}
        if said is None and ended.body is not None:
            call.extra["said"] = ended.body
        if said is not None and said.tokens is not None and not problem:
            self._set_tokens(call, said.tokens, entry.extends)
        self._recorder.settle(entry, finish, message=said.message if said else None, error=problem or None)

    def _set_tokens(self, call: Call, tokens: Tokens, extends: int | None) -> None:
        calls = self._recorder.capture.calls
        prompt = np.array(tokens.prompt, np.int32)
        looked_at = {*range(max(0, call.index - LOOKED_AT), call.index), *([extends] if extends is not None else [])}
        shared = [(common_start(prompt, full_ids(calls, each)), each) for each in looked_at]
        prefix, parent = max(shared, default=(0, 0))
        call.parent, call.prefix = (parent, prefix) if prefix else (None, 0)
        call.suffix_ids, call.response_ids = prompt[prefix:], np.array(tokens.reply, np.int32)
        known = tokens.logprobs or np.zeros(len(tokens.reply))
        call.logprobs = np.array(known, np.float32)
        call.logprobs_unit = np.array(known, np.float32)
        call.terms, call.extra["exact"] = Terms(written=True), True


@dataclass(slots=True)
class Sessions:
    """The open ones of one proxy. `folder`: where their files are; `on_closed` is given what has ended, and the file
    that may go once that is kept; `late` is where feedback goes that came after."""

    folder: Path
    redact: Redactor
    on_closed: Callable[[Episode, Path], None]
    late: Path
    run: str = ""
    idle: float = 1800.0
    """Seconds without a call or feedback after which a session is over."""
    _open: dict[str, Session] = field(default_factory=dict)
    _counts: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _ended: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def find(self, name: str) -> Session:
        """The open one of this name, or a new one."""
        session = self._open.get(name)
        if session is None:
            number = self._counts.get(name, 0)
            self._counts[name] = number + 1
            self._counts.move_to_end(name)
            if len(self._counts) > REMEMBERED:
                self._counts.popitem(last=False)
            file = self.folder / f"{uuid.uuid4().hex}.jsonl"
            session = self._open[name] = Session(name, number, file, time.time())
        session.touched = time.time()
        return session

    def begin(self, name: str, dialect: str, body: Mapping[str, Any], agent: str) -> tuple[Session, Asked]:
        """A call is asked, in this session; `call_ended` must follow."""
        session = self.find(name)
        asked = session.begin(dialect, body, agent)
        session.under_way += 1
        return session, asked

    async def call_ended(self, session: Session, asked: Asked, ended: Ended) -> None:
        """Write it down, then count it; where the disk takes nothing, it is said and counted."""
        call = asked.entry.call
        row = {
            "dialect": asked.dialect, "agent": asked.agent, "sent": asked.body, "said": ended.body,
            "problem": ended.problem, "finish": ended.finish, "started": call.started, "ended": time.time(),
        }  # fmt: skip
        try:
            async with session.turn:
                try:
                    await self._write(session, row)
                except OSError as problem:
                    logger.error("a call is not in the file of its session, {}: {}", session.file, problem)
                session.settle(asked, ended)
        finally:
            session.under_way -= 1
        session.touched = time.time()
        if session.calls >= MOST_CALLS or session.bytes >= MOST_BYTES:
            self._part_with(session)
        if session.over and session.under_way == 0:
            self._close(session)
        self._settled.set()
        self._settled = asyncio.Event()

    async def feedback(self, given: Feedback) -> dict[str, Any]:
        """Take it in; answers what it is about."""
        session = await self._about(given)
        if session is None:
            known = self._ended.get(_key(given))
            row = {**given.row(), **({"episode": known} if known else {})}
            await asyncio.to_thread(append_lines, self.late, [self.redact.row(row)])
            return {"recorded": True, "known": known is not None, **({"episode": known} if known else {})}
        async with session.turn:
            await self._write(session, {"feedback": given.row()})
            session.feedback.append(given)
        session.touched = time.time()
        if given.end and self._open.get(session.name) is session:
            self._part_with(session)
            if session.under_way == 0:
                self._close(session)
        return {"recorded": True, "known": True, "session": session.name, "episode": session.uuid}

    def close_idle(self, *, all_of_them: bool = False) -> None:
        """End those that nobody uses any more. `all_of_them`: those that are used, too."""
        now = time.time()
        for session in list(self._open.values()):
            if all_of_them or (session.under_way == 0 and now - session.touched > self.idle):
                self._close(session)

    def adopt(self, files: Sequence[Path]) -> int:
        """Go on with sessions that an earlier process left. Answers how many."""
        count = 0
        for file in files:
            try:
                heal(file)
                rows = list(read_rows(file))
                if not rows:  # its process was killed before it held anything
                    file.unlink()
                    continue
                session = self._restored(rows, self.folder / file.name)
                self.folder.mkdir(parents=True, exist_ok=True)
                file.rename(self.folder / file.name)
            except (UserError, OSError, KeyError, TypeError, ValueError) as problem:
                logger.warning("the session in {} cannot be read and is left there: {}", file, problem)
                continue
            if session.name in self._open:
                self._close(session)
            else:
                self._open[session.name] = session
            count += 1
        return count

    def _restored(self, rows: Sequence[Mapping[str, Any]], file: Path) -> Session:
        head = rows[0]
        session = Session(head["session"], head["number"], file, head["began"])
        session.bytes = 1
        self._counts[session.name] = max(self._counts.get(session.name, 0), session.number + 1)
        for row in rows[1:]:
            if "began" in row:  # the file's head again: the disk was full after the first
                continue
            if "feedback" in row:
                session.feedback.append(Feedback(**row["feedback"]))
                continue
            asked = session.begin(row["dialect"], row["sent"], row["agent"])
            session.settle(asked, Ended(row["said"], row["problem"], row["finish"]))
            asked.entry.call.started, asked.entry.call.ended = row["started"], row["ended"]
            session.touched = row["ended"]
        return session

    def _close(self, session: Session) -> None:
        if self._open.get(session.name) is session:
            del self._open[session.name]
        episode = session.episode(self.run)
        for name in (
            f"session {session.name}",
            *(f"reply {call.extra['id']}" for call in episode.calls if call.extra.get("id")),
        ):
            self._ended[name] = session.uuid
            self._ended.move_to_end(name)
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self.on_closed(episode, session.file)

    def _part_with(self, session: Session) -> None:
        """What is said under its name from now on begins another; it ends with what is under way."""
        if self._open.get(session.name) is session:
            del self._open[session.name]
        session.over = True

    async def _about(self, given: Feedback) -> Session | None:
        """The open session that it is about. A reply may be known to its client before it is to us."""
        until = time.monotonic() + PATIENCE
        while True:
            if given.reply is None:
                return self._open.get(given.session or "")
            found = next((each for each in self._open.values() if each.knows(given.reply)), None)
            waiting = self._settled
            if found is not None or _key(given) in self._ended or not any(s.under_way for s in self._open.values()):
                return found
            try:
                await asyncio.wait_for(waiting.wait(), until - time.monotonic())
            except TimeoutError:
                return None

    async def _write(self, session: Session, row: Mapping[str, Any]) -> None:
        head = {"session": session.name, "number": session.number, "began": session.began}
        lines = [self.redact.row(each) for each in ([row] if session.bytes else [head, row])]
        self.folder.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(append_lines, session.file, lines)
        session.bytes += sum(map(len, lines))


def _key(given: Feedback) -> str:
    return f"reply {given.reply}" if given.reply is not None else f"session {given.session}"


def _asks(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user"


def _instructs(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "system"


def _number(value: Any, default: float) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if known else default
