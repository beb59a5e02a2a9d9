"""ObservedSession: one conversation of an observed agent from its first call, and its episode.

Invariant: each request is a call, whatever its outcome, with messages as parsed by the gateway's dialects. Unknown
parts are recorded as sent. No request is refused, because the endpoint belongs to others. One call at a time changes a
session (`recording`); `ObservedSessions` writes the session's file.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat

from ajet.context_tracker.timeline_making import timelines
from ajet.gateway.dialects.anthropic import CountTokensDialect
from ajet.gateway.dialects.chat import ChatDialect
from ajet.gateway.dialects.completions import CompletionsDialect
from ajet.gateway.dialects.contract import Caller, Dialect
from ajet.gateway.dialects.responses import ResponsesDialect
from ajet.gateway.recorder import Recorder, common_start
from ajet.gateway.remote_reply import RemoteChoice, RemoteReply, open_reasoning, parse_reply
from ajet.gateway.remote_stream import DialectName
from ajet.gateway.request import ParsedRequest, Refused
from ajet.record.secrets import Redactor
from ajet.schema.call import Call, FinishReason, Terms, full_ids
from ajet.schema.episode import Episode, Failure
from ajet.schema.secrets import is_secret_name
from ajet.schema.settled import parse_storable_json
from ajet.schema.task import Task, extract_text
from ajet_observe.feedback import Feedback, build_verdict

_DIALECTS: Mapping[DialectName, tuple[Dialect, tuple[str, ...]]] = {
    "chat": (ChatDialect(None), ("messages", "tools")),
    "completions": (CompletionsDialect(None), ("prompt",)),
    "responses": (ResponsesDialect(None), ("input", "instructions", "previous_response_id", "tools")),
    "anthropic": (CountTokensDialect(1), ("messages", "system", "tools")),  # accepts any beginning of a reply
}
"""The dialects, and the request fields with the conversation. Other fields are left to the endpoint to refuse."""
_OPTIONAL = ("tools", "previous_response_id")
"""Fields without which the rest of a conversation can still be parsed."""
_NO_SETTINGS = ("messages", "system", "prompt", "input", "instructions", "tools", "model", "stream", "stream_options")
_COMPARED_CALLS = 8
"""Number of latest calls compared for shared tokens, besides the continued call."""


class ObservedCall(BaseModel):
    """One request with its reply, as a row of the session's file."""

    model_config = ConfigDict(strict=True)
    dialect: DialectName
    agent: str
    sent: dict[str, Any]
    """The request body without keys."""
    said: Any = None
    """The reply, complete or partial; `None` if no data arrived."""
    problem: str = ""
    """Why there is no complete reply."""
    finish: FinishReason | None = None
    """Finish reason; `None` to use the reply's own."""
    started: FiniteFloat
    ended: FiniteFloat = 0.0


class ObservedSession:
    """One open conversation of an observed agent."""

    def __init__(self, name: str, number: int, file: Path, started_at: float) -> None:
        self.name = name
        self.number = number
        self.file = file
        self.uuid = file.stem
        self.began, self.used = started_at, time.monotonic()
        """Start by the system clock, and latest use by the monotonic clock."""
        self.running = 0
        """Number of calls in progress."""
        self.calls = self.bytes = 0
        """Number of ended calls, and bytes of the file."""
        self.is_over = self.is_closed = False
        """`is_over`: the session ends with its calls in progress. `is_closed`: its episode is built."""
        self.feedback: list[Feedback] = []
        self.writing, self.recording = asyncio.Lock(), asyncio.Lock()
        """Held while the file is written, and while a call begins or settles."""
        self._recorder = Recorder()
        self._reply_ids: set[str] = set()
        self._dialect_state: dict[str, Any] = {}
        """The dialects' state of the session."""
        self._requests: dict[int, ParsedRequest] = {}
        """The requests of calls in progress, by the call's index."""

    def begin(self, row: ObservedCall) -> Call:
        """Record the request of a new call."""
        request, dropped = _parse_request(row, self._dialect_state)
        call = self._add_call(row, request)
        self._requests[call.index] = request
        call.extra |= {"follows_unseen": True} if "previous_response_id" in dropped else {}
        call.extra |= {"sent": row.sent} if dropped - {"previous_response_id"} else {}
        return call

    def settle(self, row: ObservedCall, call: Call) -> None:
        """Record the end of a call."""
        self.calls += 1
        request = self._requests.pop(call.index)
        failed = row.said is None and bool(row.problem)
        reply = RemoteReply() if failed else parse_reply(row.dialect, row.said)
        if reply.id:
            self._reply_ids.add(reply.id)
        if not reply.choices:
            self._settle_choice(row, call, None, reply)
        for index, choice in enumerate(reply.choices):
            if index:
                first, call = call, self._add_call(row, request)
                call.extra = {**first.extra, **call.extra}
            self._settle_choice(row, call, choice, reply)
        if row.dialect == "responses" and reply.choices and reply.id and request.options is not None:
            output = open_reasoning(row.said["output"])
            request.options.store_response({"status": "completed", "tools": [], **row.said, "output": output})

    def has_reply(self, reply: str) -> bool:
        """Return True if a reply of this session has this id."""
        return reply in self._reply_ids

    def build_episode(self, run: str) -> Episode:
        """Return the episode of all calls."""
        capture = self._recorder.capture
        calls, messages = capture.calls, capture.messages
        lines, untrained = timelines(calls)
        prompts = (messages[index] for call in calls for index in call.messages)
        query = next((extract_text(message) for message in prompts if message.get("role") == "user"), "")
        is_exact = bool(calls) and all(call.extra.get("exact", False) for call in calls)
        failure = None
        if calls and calls[-1].error:
            has_left = calls[-1].finish == "aborted"
            failure = Failure("agent" if has_left else "engine", "left" if has_left else "endpoint", calls[-1].error)
        return Episode(
            self.uuid,
            Task(main_query=query, task_id=self.name, metadata={"observed": True, "exact": is_exact}),
            self.number,
            0,
            "debug",
            group=self.name,
            run=run,
            status="failed" if failure else "completed",
            failure=failure,
            verdict=build_verdict(self.feedback),
            calls=calls,
            messages=messages,
            tools=capture.tools,
            timelines=lines,
            untrained=untrained,
            started=self.began,
            ended=max((call.ended for call in calls), default=self.began),
        )

    def _add_call(self, row: ObservedCall, request: ParsedRequest) -> Call:
        recorder = self._recorder
        model = row.sent.get("model")
        settings = {name: value for name, value in row.sent.items() if name not in _NO_SETTINGS}
        call = recorder.add(
            agent=row.agent,
            target=row.agent,
            trained=False,
            messages=request.messages,
            tools=request.tools,
            match=recorder.conversations.match(row.agent, request.messages),
            prompt=None,
            temperature=_read_temperature(settings.get("temperature")),
        )
        call.extra |= {"model": model if isinstance(model, str) else "", "dialect": row.dialect, "settings": settings}
        return call

    def _settle_choice(self, row: ObservedCall, call: Call, choice: RemoteChoice | None, reply: RemoteReply) -> None:
        problem = row.problem or reply.problem
        call.extra |= {"id": reply.id, "usage": dict(reply.usage), "exact": False}
        if choice is None:
            if row.said is not None:
                call.extra["said"] = row.said
            self._recorder.settle(call, row.finish or "error", error=problem or None)
            return
        if choice.reply_ids and not problem:
            self._set_tokens(call, choice)
        finish = row.finish or ("error" if problem else choice.finish)
        self._recorder.settle(call, finish, message=choice.message, error=problem or None)

    def _set_tokens(self, call: Call, choice: RemoteChoice) -> None:
        calls, extends = self._recorder.capture.calls, self._recorder.stored[call.index].extends
        prompt = np.array(choice.prompt_ids, np.int32)
        compared = {*range(max(0, call.index - _COMPARED_CALLS), call.index), *([] if extends is None else [extends])}
        shared = [(common_start(prompt, full_ids(calls, each)), each) for each in compared]
        prefix, parent = max(shared, default=(0, 0))
        call.parent, call.prefix = (parent, prefix) if prefix else (None, 0)
        call.suffix_ids, call.response_ids = prompt[prefix:], np.array(choice.reply_ids, np.int32)
        logprobs = choice.logprobs or np.zeros(len(choice.reply_ids))
        call.logprobs = np.array(logprobs, np.float32)
        call.logprobs_unit = np.array(logprobs, np.float32)
        call.terms, call.extra["exact"] = Terms(written=True), True


def read_call(dialect: DialectName, agent: str, body: bytes, redact: Redactor) -> ObservedCall | None:
    """Return the row of a request, without keys; `None` if the body is no JSON object."""
    sent = _redact_named(redact.tree(parse_storable_json(body)))
    return ObservedCall(dialect=dialect, agent=agent, sent=sent, started=0.0) if isinstance(sent, dict) else None


def _redact_named(value: Any) -> Any:
    """Return JSON with the strings under secret names redacted (a tool's `authorization`)."""
    if isinstance(value, Mapping):
        return {
            name: "[redacted]" if isinstance(item, str) and is_secret_name(str(name)) else _redact_named(item)
            for name, item in value.items()
        }
    return [_redact_named(item) for item in value] if isinstance(value, list) else value


def _parse_request(row: ObservedCall, stored: dict[str, Any]) -> tuple[ParsedRequest, set[str]]:
    """Parse the conversation of a recorded request. Return it with the names of fields that could not be parsed.

    Messages that cannot be parsed become one message with their JSON.
    """
    dialect, names = _DIALECTS[row.dialect]
    main = names[0]
    fields = {name: row.sent[name] for name in names if name in row.sent}
    if isinstance(fields.get("input"), list):
        fields["input"] = open_reasoning(fields["input"])
    dropped: set[str] = set()
    while True:
        try:
            request = dialect.parse(fields, Caller(row.agent, dialect_state=stored))
            if not request.prompts:
                return request, dropped
            if len(request.prompts) == 1 and isinstance(prompt := request.prompts[0], str):
                return replace(request, messages=({"role": "user", "content": prompt},), prompts=()), dropped
            refused_field = main
        except Refused as refused:
            refused_field = re.split(r"[.\[]", refused.param or "")[0]
        if refused_field not in _OPTIONAL:
            text = json.dumps({main: row.sent[main]} if main in row.sent else {}, ensure_ascii=False)
            fields[main] = [{"role": "user", "content": text}] if main == "messages" else text
            refused_field, fields = main, {name: fields[name] for name in fields if name in (main, *_OPTIONAL)}
        else:
            del fields[refused_field]
        dropped.add(refused_field)


def _read_temperature(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if is_number else 1.0
