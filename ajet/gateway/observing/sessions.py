"""Sessions: the conversations of observed agents, each of which becomes an episode.

Invariant: a call that has ended, and a word of feedback, are in the session's file before they are counted, so that a
killed proxy loses none; the file goes when the episode is on the disk. A session closes while nobody writes to it, and
takes nothing after: a word that waited for its turn until then is late feedback about its episode. A name stands for
one open session at a time: what is said under it after its end begins another, while what was under way is still this
one's. On one event loop.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from loguru import logger
from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter

from ajet.gateway.observing.feedback import Feedback, read_feedback
from ajet.gateway.observing.requests import Sent, read_request
from ajet.gateway.observing.session import Asked, Ended, Session
from ajet.gateway.remote_stream import DialectName
from ajet.gateway.request import Refused
from ajet.record.files import append_lines, cut_partial_line, read_rows
from ajet.record.secrets import Redactor
from ajet.schema.bounded_json import LONG_BYTES
from ajet.schema.call import FinishReason
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError

CLIENT_LEFT = "the client left before the reply was whole"
REMEMBERED = 100_000
"""Sessions and replies that have ended, by whose names feedback still finds its episode."""
MOST_CALLS, MOST_BYTES = 1000, 256 << 20
"""Of a session and its file; then it is over, and what is said under its name begins another: a client that names none
and never rests would fill the memory otherwise."""
PATIENCE = 30.0
"""Seconds for which feedback on a reply that nobody knows waits for calls that are under way."""


class _HeadRow(BaseModel):
    """The first row of a session's file."""

    model_config = ConfigDict(strict=True)
    session: str
    number: int
    began: FiniteFloat


class _CallRow(BaseModel):
    """The row of a call that has ended."""

    model_config = ConfigDict(strict=True)
    dialect: DialectName
    agent: str
    sent: dict[str, Any]
    said: Any
    problem: str
    finish: FinishReason | None
    started: FiniteFloat
    ended: FiniteFloat


_FEEDBACK, _TIME = TypeAdapter(dict[str, Any]), TypeAdapter(FiniteFloat)


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
    _parted: list[Session] = field(default_factory=list)
    """Those that are over and have calls under way."""
    _counts: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _ended: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _late_turn: asyncio.Lock = field(default_factory=asyncio.Lock)

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
        session.touched = time.monotonic()
        return session

    async def begin(
        self, name: str, dialect: DialectName, body: Mapping[str, Any], sent: Sent, agent: str, *, is_long: bool = False
    ) -> tuple[Session, Asked]:
        """A call is asked, in this session; `call_ended` must follow. It must not be cancelled. `sent`: the body as
        `read_request` reads it; `is_long`: it belongs on a thread."""
        session = self.find(name)
        session.under_way += 1
        begin = partial(session.begin, dialect, body, sent, agent)
        try:
            async with session.recording:
                return session, await asyncio.to_thread(begin) if is_long else begin()
        except BaseException:
            session.under_way -= 1
            raise

    async def call_ended(self, session: Session, asked: Asked, ended: Ended) -> None:
        """Write it down, then count it; where the disk takes nothing, it is said and counted."""
        call = asked.call
        row = {
            "dialect": asked.dialect, "agent": asked.agent, "sent": asked.body, "said": ended.body,
            "problem": ended.problem, "finish": ended.finish, "started": call.started, "ended": time.time(),
        }  # fmt: skip
        try:
            async with session.turn:
                before = session.bytes
                try:
                    await self._write(session, row)
                except OSError as problem:
                    logger.error("a call is not in the file of its session, {}: {}", session.file, problem)
                settle = partial(session.settle, asked, ended)
                async with session.recording:
                    await asyncio.to_thread(settle) if session.bytes - before > LONG_BYTES else settle()
        finally:
            session.under_way -= 1
            session.touched = time.monotonic()
            if session.calls >= MOST_CALLS or session.bytes >= MOST_BYTES:
                self._part_with(session)
            self._close_if_over(session)
            self._settled.set()
            self._settled = asyncio.Event()

    async def feedback(self, given: Feedback) -> dict[str, Any]:
        """Take it in; answers what it is about. It must not be cancelled. Raises OSError: then it is not taken in."""
        session = await self._about(given)
        if session is None:
            return await self._take_late(given, self._ended.get(_key(given)))
        try:
            async with session.turn:
                in_time = not session.closed
                if in_time:
                    await self._write(session, {"feedback": given.row()})
                    session.feedback.append(given)
                    session.touched = time.monotonic()
                    if given.end:
                        self._part_with(session)
        finally:
            self._close_if_over(session)
        if not in_time:
            return await self._take_late(given, session.uuid)
        return {"recorded": True, "known": True, "session": session.name, "episode": session.uuid}

    def close_idle(self, *, all_of_them: bool = False) -> None:
        """End those that nobody uses any more. `all_of_them`: those that are used end with what is under way."""
        now = time.monotonic()
        for session in list(self._open.values()):
            used = session.under_way > 0 or session.turn.locked()
            if all_of_them or (not used and now - session.touched > self.idle):
                self._part_with(session)
                self._close_if_over(session)

    def adopt(self, files: Sequence[Path]) -> int:
        """Go on with sessions that an earlier process left. Answers how many."""
        count = 0
        for file in files:
            try:
                cut_partial_line(file)
                rows = list(read_rows(file))
                if not rows:  # its process was killed before it held anything
                    file.unlink()
                    continue
                session = self._restored(rows, self.folder / file.name)
                session.bytes = file.stat().st_size
                self.folder.mkdir(parents=True, exist_ok=True)
                file.rename(session.file)
            except (UserError, OSError, KeyError, ValueError, Refused) as problem:
                logger.warning("the session in {} cannot be read and is left there: {}", file, problem)
                continue
            count += 1
            older, newer = sorted((self._open.get(session.name, session), session), key=lambda each: each.began)
            self._open[session.name] = newer
            for each in (older, newer):
                if each is older and older is not newer or each.over:
                    self._close(each)
        return count

    def _restored(self, rows: Sequence[Mapping[str, Any]], file: Path) -> Session:
        """Raises ValueError, KeyError and Refused for rows that ajet did not write."""
        head = _HeadRow.model_validate(rows[0])
        session = Session(head.session, head.number, file, head.began)
        self._counts[session.name] = max(self._counts.get(session.name, 0), session.number + 1)
        for row in rows[1:]:
            if "began" in row:  # the file's head again: the disk was full after the first
                continue
            if "feedback" in row:
                told = dict(_FEEDBACK.validate_python(row["feedback"]))
                at = _TIME.validate_python(told.pop("at"))
                session.feedback.append(read_feedback(told, at))
                session.over |= session.feedback[-1].end
                continue
            call = _CallRow.model_validate(row)
            sent = read_request(call.dialect, call.sent)
            asked = session.begin(call.dialect, call.sent, sent, call.agent)
            session.settle(asked, Ended(call.said, call.problem, call.finish))
            asked.call.started, asked.call.ended = call.started, call.ended
            session.touched = time.monotonic() - max(0.0, time.time() - call.ended)
        return session

    def _close(self, session: Session) -> None:
        session.closed = True
        if self._open.get(session.name) is session:
            del self._open[session.name]
        elif session in self._parted:
            self._parted.remove(session)
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
            self._parted.append(session)
        session.over = True

    def _close_if_over(self, session: Session) -> None:
        """Where it is over and nobody calls or writes: whoever does comes by here when that is done."""
        if session.over and not session.closed and not session.under_way and not session.turn.locked():
            self._close(session)

    async def _take_late(self, given: Feedback, episode: str | None) -> dict[str, Any]:
        """What is about an episode that is made, or about nothing that is known (None)."""
        about = {"episode": episode} if episode else {}
        async with self._late_turn:
            await asyncio.to_thread(append_lines, self.late, [self.redact.row({**given.row(), **about})])
        return {"recorded": True, "known": episode is not None, **about}

    async def _about(self, given: Feedback) -> Session | None:
        """The session that it is about, which has not closed. A reply may be known to its client before it is to us."""
        until = time.monotonic() + PATIENCE
        while True:
            if given.reply is None:
                name = given.session or ""
                parted = (each for each in reversed(self._parted) if each.name == name)
                return self._open.get(name) or next(parted, None)
            living = [*self._open.values(), *self._parted]
            found = next((each for each in living if each.knows(given.reply)), None)
            if found is not None or _key(given) in self._ended or not any(each.under_way for each in living):
                return found
            try:
                await asyncio.wait_for(self._settled.wait(), until - time.monotonic())
            except asyncio.TimeoutError:  # on Python 3.10 no TimeoutError
                return None

    async def _write(self, session: Session, row: Mapping[str, Any]) -> None:
        head = {"session": session.name, "number": session.number, "began": session.began}
        rows = [row] if session.bytes else [head, row]
        self.folder.mkdir(parents=True, exist_ok=True)

        def write() -> int:
            lines = [self.redact.row(each) for each in rows]
            append_lines(session.file, lines)
            return sum(map(len, lines))

        session.bytes += await asyncio.to_thread(write)


def _key(given: Feedback) -> str:
    return f"reply {given.reply}" if given.reply is not None else f"session {given.session}"
