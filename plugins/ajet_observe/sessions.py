"""ObservedSessions: the open sessions of a relay, each of which becomes an episode when it ends.

Invariant: an ended call, and feedback, are in the session's file before they are counted, so a killed process loses no
data. The file is deleted once the episode is on the disk. A session closes only while no data is being written.
Feedback that waited for the closing is late feedback on the episode. A name has one open session: after its end, or an
`end` in feedback, the next request of the name begins a new session, and calls in progress still belong to the earlier
session. All code runs on one event loop.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from loguru import logger
from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter

from ajet.gateway.request import Refused
from ajet.record.files import append_lines, cut_partial_line, read_rows
from ajet.record.secrets import Redactor
from ajet.schema.bounded_json import LONG_BYTES
from ajet.schema.call import Call
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet_observe.feedback import Feedback, parse_feedback
from ajet_observe.session import ObservedCall, ObservedSession

MAX_ENDED = 100_000
"""Number of ended sessions and replies whose episode can still be found for feedback."""
MAX_CALLS, MAX_BYTES = 1000, 256 << 20
"""Limits on a session's calls and the bytes of its file. Without them, an unnamed client that never pauses would
fill the memory."""
REPLY_WAIT_S = 30.0
"""Seconds for which feedback on an unknown reply waits for calls in progress."""


class _Head(BaseModel):
    """The first row of a session's file, which names the session."""

    model_config = ConfigDict(strict=True)
    session: str
    number: int
    began: FiniteFloat


class RunningCall(NamedTuple):
    """A call in progress, with its session and its row of the file."""

    session: ObservedSession
    row: ObservedCall
    """`said`, `problem` and `finish` of the row are set after the reply."""
    call: Call


_FEEDBACK = TypeAdapter(dict[str, Any])


@dataclass(slots=True)
class ObservedSessions:
    """The open sessions of one relay."""

    folder: Path
    """The folder of the sessions' files."""
    redact: Redactor
    on_closed: Callable[[Episode, Path], None]
    """Takes the episode of an ended session, and the file to delete once the episode is on the disk."""
    late: Path
    """The file for feedback on ended sessions."""
    run: str = ""
    idle: float = 1800.0
    """Seconds without a call or feedback after which a session ends."""
    _open_sessions: dict[str, ObservedSession] = field(default_factory=dict)
    _ending_sessions: list[ObservedSession] = field(default_factory=list)
    """Sessions that are over, with calls still in progress."""
    _counts: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Name -> number of sessions with this name so far."""
    _episode_of_feedback_key: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """Key of feedback -> the ended episode of its session or reply."""
    _all_calls_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _late_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def find(self, name: str) -> ObservedSession:
        """Return the open session of this name, or a new session."""
        session = self._open_sessions.get(name)
        if session is None:
            number = self._counts.get(name, 0)
            _remember_entry(self._counts, name, number + 1)
            file = self.folder / f"{uuid.uuid4().hex}.jsonl"
            session = self._open_sessions[name] = ObservedSession(name, number, file, time.time())
        session.used = time.monotonic()
        return session

    async def begin(self, name: str, row: ObservedCall, *, is_long: bool = False) -> RunningCall:
        """Record a request in the session of this name. Must be followed by `end`, and must not be cancelled.

        Args:
            is_long: Parse the request on a thread, because parsing takes long.
        """
        session = self.find(name)
        session.running += 1
        try:
            async with session.recording:
                call = await asyncio.to_thread(session.begin, row) if is_long else session.begin(row)
        except BaseException:
            session.running -= 1
            raise
        return RunningCall(session, row, call)

    async def end(self, running: RunningCall) -> None:
        """Write an ended call, then count it. A call that cannot be written is logged and still counted."""
        session, row, call = running
        row.started, row.ended = call.started, time.time()
        try:
            async with session.writing:
                size_before = session.bytes
                try:
                    await self._write_row(session, dict(row))
                except OSError as error:
                    logger.error("a model call could not be written to its session file {}: {}", session.file, error)
                is_long = session.bytes - size_before > LONG_BYTES
                async with session.recording:
                    await asyncio.to_thread(session.settle, row, call) if is_long else session.settle(row, call)
        finally:
            session.running -= 1
            session.used = time.monotonic()
            if session.calls >= MAX_CALLS or session.bytes >= MAX_BYTES:
                self._end_session(session)
            self._close_if_over(session)
            # Waiting feedback continues with the set event; later feedback waits for the next call.
            self._all_calls_ended.set()
            self._all_calls_ended = asyncio.Event()

    async def add_feedback(self, feedback: Feedback) -> dict[str, Any]:
        """Write feedback to its open session or ended episode, and return which one it was.

        Must not be cancelled. Raises OSError if writing fails.
        """
        session = await self._find_subject(feedback)
        if session is None:
            return await self._add_late(feedback, self._episode_of_feedback_key.get(_build_key(feedback)))
        try:
            async with session.writing:
                if is_in_time := not session.is_closed:
                    await self._write_row(session, {"feedback": feedback.build_row()})
                    session.feedback.append(feedback)
                    session.used = time.monotonic()
                    if feedback.end:
                        self._end_session(session)
        finally:
            self._close_if_over(session)
        if not is_in_time:
            return await self._add_late(feedback, session.uuid)
        return {"recorded": True, "known": True, "session": session.name, "episode": session.uuid}

    def close_idle(self, *, all_of_them: bool = False) -> None:
        """End the sessions without recent requests.

        Args:
            all_of_them: True to end all sessions. Those with calls in progress end with these calls.
        """
        now = time.monotonic()
        for session in list(self._open_sessions.values()):
            is_used = session.running > 0 or session.writing.locked()
            if all_of_them or (not is_used and now - session.used > self.idle):
                self._end_session(session)
                self._close_if_over(session)

    def adopt(self, files: Sequence[Path]) -> int:
        """Continue the sessions in files of an earlier process. Return their number."""
        count = 0
        for file in files:
            try:
                cut_partial_line(file)
                rows = list(read_rows(file))
                if not rows:  # the process was killed before its first write
                    file.unlink()
                    continue
                session = self._restore_session(rows, self.folder / file.name)
                session.bytes = file.stat().st_size
                self.folder.mkdir(parents=True, exist_ok=True)
                file.rename(session.file)
            except (UserError, OSError, KeyError, ValueError, Refused) as error:
                logger.warning("the recorded session {} cannot be read; the file stays where it is: {}", file, error)
                continue
            count += 1
            # Only one session of a name can be open: the newer one continues, the older one ends.
            older_session, newer_session = sorted(
                (self._open_sessions.get(session.name, session), session), key=lambda candidate: candidate.began
            )
            self._open_sessions[session.name] = newer_session
            for candidate in (older_session, newer_session):
                if (candidate is older_session and older_session is not newer_session) or candidate.is_over:
                    self._close_session(candidate)
        return count

    def _restore_session(self, rows: Sequence[Mapping[str, Any]], file: Path) -> ObservedSession:
        """Rebuild a session from its file. Raises ValueError, KeyError and Refused for foreign rows."""
        head = _Head.model_validate(rows[0])
        session = ObservedSession(head.session, head.number, file, head.began)
        self._counts[session.name] = max(self._counts.get(session.name, 0), session.number + 1)
        for row in rows[1:]:
            if "began" in row:  # the head was written twice: the disk was full after the first time
                continue
            if "feedback" in row:
                feedback = dict(_FEEDBACK.validate_python(row["feedback"]))
                session.feedback.append(parse_feedback(feedback, feedback.pop("at")))
                session.is_over |= session.feedback[-1].end
                continue
            restored = ObservedCall.model_validate(row)
            call = session.begin(restored)
            session.settle(restored, call)
            call.started, call.ended = restored.started, restored.ended
            session.used = time.monotonic() - max(0.0, time.time() - restored.ended)
        return session

    def _close_session(self, session: ObservedSession) -> None:
        """End a session without calls in progress: build its episode, and pass it on with the session's file."""
        session.is_closed = True
        if self._open_sessions.get(session.name) is session:
            del self._open_sessions[session.name]
        elif session in self._ending_sessions:
            self._ending_sessions.remove(session)
        episode = session.build_episode(self.run)
        _remember_entry(self._episode_of_feedback_key, f"session {session.name}", session.uuid)
        for call in episode.calls:
            if call.extra.get("id"):
                _remember_entry(self._episode_of_feedback_key, f"reply {call.extra['id']}", session.uuid)
        self.on_closed(episode, session.file)

    def _end_session(self, session: ObservedSession) -> None:
        """End a session with its calls in progress. The next request of its name begins a new session."""
        if self._open_sessions.get(session.name) is session:
            del self._open_sessions[session.name]
            self._ending_sessions.append(session)
        session.is_over = True

    def _close_if_over(self, session: ObservedSession) -> None:
        """Write a session's episode if the session has ended and no call is in progress.

        Called after each call and each feedback.
        """
        if session.is_over and not session.is_closed and not session.running and not session.writing.locked():
            self._close_session(session)

    async def _add_late(self, feedback: Feedback, episode: str | None) -> dict[str, Any]:
        """Write feedback on an ended episode.

        Args:
            episode: id of the episode; None if no session or reply matches the feedback.
        """
        episode_field = {"episode": episode} if episode else {}
        async with self._late_lock:
            row = self.redact.row({**feedback.build_row(), **episode_field})
            await asyncio.to_thread(append_lines, self.late, [row])
        return {"recorded": True, "known": episode is not None, **episode_field}

    def _list_open(self) -> Iterator[ObservedSession]:
        """Yield the sessions that can still get feedback: the open ones, then those that end with their calls, newest
        first."""
        yield from self._open_sessions.values()
        yield from reversed(self._ending_sessions)

    async def _find_subject(self, feedback: Feedback) -> ObservedSession | None:
        """Return the open session that feedback refers to, or None.

        A client may know a reply before the relay has recorded it, so an unknown reply is awaited for a while.
        """
        deadline = time.monotonic() + REPLY_WAIT_S
        while True:
            if feedback.reply is None:
                return next(
                    (open_session for open_session in self._list_open() if open_session.name == feedback.session), None
                )
            session = next(
                (open_session for open_session in self._list_open() if open_session.has_reply(feedback.reply)), None
            )
            is_ended = _build_key(feedback) in self._episode_of_feedback_key
            if session is not None or is_ended or not any(open_session.running for open_session in self._list_open()):
                return session
            try:
                await asyncio.wait_for(self._all_calls_ended.wait(), deadline - time.monotonic())
            except TimeoutError:
                return None

    async def _write_row(self, session: ObservedSession, row: Mapping[str, Any]) -> None:
        """Append a row to a session's file, before it the head if the file is new. The file is written in a thread."""
        head = {"session": session.name, "number": session.number, "began": session.began}
        rows = [row] if session.bytes else [head, row]
        self.folder.mkdir(parents=True, exist_ok=True)

        def append_rows() -> int:
            """Append the redacted rows, and return the number of characters written."""
            lines = [self.redact.row(entry) for entry in rows]
            append_lines(session.file, lines)
            return sum(map(len, lines))

        session.bytes += await asyncio.to_thread(append_rows)


def _remember_entry(entries: OrderedDict[str, Any], key: str, value: Any) -> None:
    """Set the newest entry of `entries`, and delete the oldest beyond MAX_ENDED."""
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > MAX_ENDED:
        entries.popitem(last=False)


def _build_key(feedback: Feedback) -> str:
    """Return the key by which ended episodes are found for feedback: the reply's id, or the session's name."""
    return f"reply {feedback.reply}" if feedback.reply is not None else f"session {feedback.session}"
