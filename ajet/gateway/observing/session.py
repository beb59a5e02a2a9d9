"""Session: one conversation of an observed agent, from its first call on, and the episode that it comes to.

Invariant: each request is a call, whatever became of it; tokens are there only where the endpoint gave them, and
nothing is encoded. Everything but `episode` changes it, one call at a time (`recording`); its file is written by
`Sessions`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ajet.context_tracker.timeline_making import timelines
from ajet.gateway.observing.feedback import Feedback, verdict_of
from ajet.gateway.observing.requests import Sent
from ajet.gateway.recorder import Recorder, common_start
from ajet.gateway.remote_reply import RemoteChoice, RemoteReply, parse_reply
from ajet.gateway.remote_stream import DialectName
from ajet.schema.call import Call, FinishReason, Terms, full_ids
from ajet.schema.episode import Episode, Failure
from ajet.schema.messages import extract_text
from ajet.schema.task import Task

LOOKED_AT = 8
"""Calls before one whose tokens it may share, beside the one that it goes on from."""


@dataclass(slots=True)
class Asked:
    """A call under way."""

    dialect: DialectName
    agent: str
    body: Mapping[str, Any]
    sent: Sent
    call: Call


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
        self.began, self.touched = began, time.monotonic()
        """By the system clock, as the record says it; and when it was used last, by the monotonic one."""
        self.under_way = 0
        self.calls = self.bytes = 0
        """That have ended; of the file."""
        self.over = self.closed = False
        """Said to be over: it ends with what is under way. Its episode is made."""
        self.feedback: list[Feedback] = []
        self.turn, self.recording = asyncio.Lock(), asyncio.Lock()
        """Of who writes to its file; of who begins or settles a call."""
        self._recorder = Recorder()
        self._replies: set[str] = set()
        self._responses: dict[str, Call] = {}
        """Those of the replies that something can go on from."""

    def begin(self, dialect: DialectName, body: Mapping[str, Any], sent: Sent, agent: str) -> Asked:
        """A call is asked."""
        return Asked(dialect, agent, body, sent, self._enter(sent, agent, dialect))

    def settle(self, asked: Asked, ended: Ended) -> RemoteReply:
        """Settle a call that has ended."""
        self.calls += 1
        broken = ended.body is None and bool(ended.problem)
        answer = RemoteReply() if broken else parse_reply(asked.dialect, ended.body)
        problem = ended.problem or answer.problem
        choices = answer.choices or (None,)
        calls = [asked.call, *(self._enter(asked.sent, asked.agent, asked.dialect) for _ in choices[1:])]
        for call, said in zip(calls, choices, strict=True):
            self._settle(call, said, answer, problem, ended)
        if answer.id:
            self._replies.add(answer.id)
        if asked.call.reply is not None and answer.id:
            self._responses[answer.id] = asked.call
        return answer

    def knows(self, reply: str) -> bool:
        """Whether the reply of this id is one of its own."""
        return reply in self._replies

    def episode(self, run: str) -> Episode:
        """The episode of all its calls."""
        capture = self._recorder.capture
        calls, messages = capture.calls, capture.messages
        lines, untrained = timelines(calls)
        asked = next((extract_text(messages[at]) for call in calls for at in call.messages if _asks(messages[at])), "")
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

    def _enter(self, sent: Sent, agent: str, dialect: DialectName) -> Call:
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
        call = recorder.add(
            agent=agent,
            target=agent,
            trained=False,
            messages=messages,
            tools=sent.tools,
            match=recorder.conversations.match(agent, messages),
            prompt=None,
            temperature=_number(sent.settings.get("temperature"), 1.0),
        )
        call.extra |= extra
        return call

    def _conversation(self, before: Call, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What went before a response, and itself; instructions are those of the new request."""
        messages = self._recorder.capture.messages
        told = [messages[at] for at in before.messages] + ([messages[before.reply]] if before.reply is not None else [])
        return [each for each in told if each.get("role") != "system"] if any(map(_instructs, own)) else told

    def _settle(self, call: Call, said: RemoteChoice | None, answer: RemoteReply, problem: str, ended: Ended) -> None:
        finish = ended.finish or ("error" if said is None or problem else said.finish)
        call.extra |= {"id": answer.id, "usage": dict(answer.usage), "exact": False}
        if said is None and ended.body is not None:
            call.extra["said"] = ended.body
        if said is not None and len(said.reply_ids) and not problem:
            self._set_tokens(call, said, self._recorder.stored[call.index].extends)
        self._recorder.settle(call, finish, message=said.message if said else None, error=problem or None)

    def _set_tokens(self, call: Call, choice: RemoteChoice, extends: int | None) -> None:
        calls = self._recorder.capture.calls
        prompt = np.array(choice.prompt_ids, np.int32)
        looked_at = {*range(max(0, call.index - LOOKED_AT), call.index), *([extends] if extends is not None else [])}
        shared = [(common_start(prompt, full_ids(calls, each)), each) for each in looked_at]
        prefix, parent = max(shared, default=(0, 0))
        call.parent, call.prefix = (parent, prefix) if prefix else (None, 0)
        call.suffix_ids, call.response_ids = prompt[prefix:], np.array(choice.reply_ids, np.int32)
        known = choice.logprobs or np.zeros(len(choice.reply_ids))
        call.logprobs = np.array(known, np.float32)
        call.logprobs_unit = np.array(known, np.float32)
        call.terms, call.extra["exact"] = Terms(written=True), True


def _asks(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user"


def _instructs(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "system"


def _number(value: Any, default: float) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if known else default
