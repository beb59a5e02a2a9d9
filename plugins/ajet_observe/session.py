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
        """Create an open session.

        Args:
            number: number of earlier sessions with this name.
            file: the session's file, whose name is the uuid of the episode.
            started_at: start in seconds since the epoch.
        """
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
        """Record the request of a new call, and return the call. Fields that cannot be parsed are stored as sent in
        `extra`."""
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
        has_failed = row.said is None and bool(row.problem)
        reply = RemoteReply() if has_failed else parse_reply(row.dialect, row.said)
        if reply.id:
            self._reply_ids.add(reply.id)
        if not reply.choices:
            self._settle_choice(row, call, None, reply)
        for index, choice in enumerate(reply.choices):
            # Each further choice of a reply (n > 1) becomes a call of its own with the same request.
            if index:
                first_call, call = call, self._add_call(row, request)
                call.extra = {**first_call.extra, **call.extra}
            self._settle_choice(row, call, choice, reply)
        # Later requests may refer to this response by its id, as `previous_response_id`.
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
        episode_timelines, untrained = timelines(calls)
        prompt_messages = (messages[index] for call in calls for index in call.messages)
        query = next((extract_text(message) for message in prompt_messages if message.get("role") == "user"), "")
        is_exact = bool(calls) and all(call.extra.get("exact", False) for call in calls)
        failure = None
        if calls and calls[-1].error:
            has_client_left = calls[-1].finish == "aborted"
            failure = Failure(
                "agent" if has_client_left else "engine", "left" if has_client_left else "endpoint", calls[-1].error
            )
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
            timelines=episode_timelines,
            untrained=untrained,
            started=self.began,
            ended=max((call.ended for call in calls), default=self.began),
        )

    def _add_call(self, row: ObservedCall, request: ParsedRequest) -> Call:
        """Add a call to the record when its request arrives, with the model and settings of the request."""
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
        """Record a call's end: the message and tokens of a choice, or the failure if the reply has none."""
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
        """Store the token ids that the endpoint reported for a call.

        The call's parent is the earlier call that shares the longest beginning with its prompt.
        """
        calls, continued_call = self._recorder.capture.calls, self._recorder.stored[call.index].extends
        prompt = np.array(choice.prompt_ids, np.int32)
        compared_calls = {
            *range(max(0, call.index - _COMPARED_CALLS), call.index),
            *([] if continued_call is None else [continued_call]),
        }
        shared_lengths = [
            (common_start(prompt, full_ids(calls, earlier_call)), earlier_call) for earlier_call in compared_calls
        ]
        prefix, parent = max(shared_lengths, default=(0, 0))
        call.parent, call.prefix = (parent, prefix) if prefix else (None, 0)
        call.suffix_ids, call.response_ids = prompt[prefix:], np.array(choice.reply_ids, np.int32)
        # An endpoint may report ids without log-probabilities; these are 0, and the call is never trained.
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


def _parse_request(row: ObservedCall, dialect_state: dict[str, Any]) -> tuple[ParsedRequest, set[str]]:
    """Parse the conversation of a recorded request.

    The first field that cannot be parsed is dropped or replaced, and parsing starts again. A conversation that cannot
    be
    parsed becomes one message with its JSON.

    Args:
        dialect_state: the dialects' state of the session.

    Returns:
        The parsed request, and the names of the fields that could not be parsed.
    """
    dialect, field_names = _DIALECTS[row.dialect]
    conversation_field = field_names[0]
    fields = {name: row.sent[name] for name in field_names if name in row.sent}
    if isinstance(fields.get("input"), list):
        fields["input"] = open_reasoning(fields["input"])
    dropped: set[str] = set()
    while True:
        try:
            request = dialect.parse(fields, Caller(row.agent, dialect_state=dialect_state))
            if not request.prompts:
                return request, dropped
            if len(request.prompts) == 1 and isinstance(prompt := request.prompts[0], str):
                return replace(request, messages=({"role": "user", "content": prompt},), prompts=()), dropped
            # Several prompts in one request are no conversation.
            refused_field = conversation_field
        except Refused as refused:
            refused_field = re.split(r"[.\[]", refused.param or "")[0]
        if refused_field not in _OPTIONAL:
            text = json.dumps(
                {conversation_field: row.sent[conversation_field]} if conversation_field in row.sent else {},
                ensure_ascii=False,
            )
            fields[conversation_field] = (
                [{"role": "user", "content": text}] if conversation_field == "messages" else text
            )
            refused_field, fields = (
                conversation_field,
                {name: fields[name] for name in fields if name in (conversation_field, *_OPTIONAL)},
            )
        else:
            del fields[refused_field]
        dropped.add(refused_field)


def _read_temperature(value: Any) -> float:
    """Return a request's temperature, or 1.0, the protocols' default, if it is no finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return float(value) if is_number else 1.0
