"""The replay of golden requests: each is sent over HTTP, and its answer is described in lines that can be compared.

Invariant: a description has every byte of the answer but what is new at each run. Ids, times and the address become
placeholders; the deltas of a stream are joined, since how a reply is cut into events is no promise; the events' types
and their order stay.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from tests.support.golden_gateway import WAIT_S, GoldenGateway, GoldenSession
from tests.support.golden_requests import GoldenRequest, Line

_VOLATILE = {"date", "server", "content-length", "connection", "transfer-encoding"}
_REQUEST_ID = re.compile(r"req_[0-9a-f]{24}")
_ID = re.compile(r"[0-9a-f]{24,}")
_BLOCK = re.compile(r"(?:event: (?P<name>\S+)\n)?data: (?P<data>.*)")
_TIMES = ("created", "created_at", "completed_at")
_REPEATED = re.compile(r"\$(\d+)\*(.*)", re.DOTALL)
_GROWING = {"content", "reasoning_content", "arguments", "text", "delta", "thinking", "partial_json"}
"""Fields of an event whose texts are joined with those of the event before."""
_SINGLE_LISTS = {"choices", "tool_calls", "candidates", "parts"}
"""Fields with one entry in a delta, which is joined with that of the event before."""
_GROWING_LISTS = {"content", "logprobs", "tokens", "token_logprobs", "top_logprobs", "text_offset"}
"""Fields with an entry for each token."""


class ReplayError(Exception):
    """A request could not be sent, or its answer broke off: the gateway answered otherwise than the replay needs."""


def replay_requests(requests: Mapping[str, Sequence[GoldenRequest]]) -> dict[str, dict[str, list[Line]]]:
    """Send all requests to gateways started for it; return the answers by file and name."""
    with ExitStack() as stack:
        gateways: dict[str, GoldenGateway] = {}
        answers: dict[str, dict[str, list[Line]]] = {}
        for file, listed in requests.items():
            sessions: dict[str, list[GoldenRequest]] = {}
            for request in listed:
                sessions.setdefault(request.session or request.name, []).append(request)
            found: dict[str, list[Line]] = {}
            for asked in sessions.values():
                model = asked[0].model
                if model not in gateways:
                    gateways[model] = stack.enter_context(closing(GoldenGateway(model)))
                found |= _replay_session(gateways[model], asked)
            answers[file] = {request.name: found[request.name] for request in listed}
        return answers


def _replay_session(gateway: GoldenGateway, requests: Sequence[GoldenRequest]) -> dict[str, list[Line]]:
    session = gateway.open(requests[0].open)
    answers: dict[str, list[Line]] = {}
    replies: dict[str, Any] = {}
    """The last JSON value of each answer, for later requests that send back a part of it."""
    calls: list[tuple[str, int]] = []
    try:
        for request in requests:
            sent_before, calls_before = len(session.sent()), session.call_count
            session.queue_replies(_fill(request.replies, {}))
            try:
                lines, replies[request.name] = _exchange(session, request, replies)
                if not session.is_closed:
                    session.wait_idle()
            except (ReplayError, TimeoutError) as error:
                lines = [{"request": request.name, "failed": str(error)}]
            lines += [{"sent": sent} for sent in session.sent()[sent_before:]]
            answers[request.name] = lines
            calls += [(request.name, call) for call in range(calls_before, session.call_count)]
    finally:
        session.close()
    records = session.records()
    for name, call in calls:
        answers[name].append({"record": records[call]})
    placeholders = _Placeholders(session.address)
    return {name: [placeholders.put(line) for line in lines] for name, lines in answers.items()}


def _exchange(session: GoldenSession, request: GoldenRequest, replies: Mapping[str, Any]) -> tuple[list[Line], Any]:
    """Return the lines of one request's answer, and its last JSON value."""
    pause = request.replies[0].get("pause") if request.replies else None
    with closing(_Wire(session, request, replies)) as first:
        if pause is None:
            lines = first.describe(first.read())
        elif request.then == "leave":
            lines = first.describe(first.read_until_paused(pause)) if request.is_streamed else _leave(session, first)
        elif request.then == "end":
            if request.is_streamed:
                first.read_until_paused(pause)
            session.wait_paused()
            session.close()
            lines = first.describe(first.read())
        else:
            assert request.then == "join" and request.is_streamed, f"{request.name}: a pause needs leave, join or end"
            first.read_until_paused(pause)
            with closing(_Wire(session, request, replies)) as second:
                second.read_until_paused(pause)
                session.resume()
                lines = first.describe(first.read()) + second.describe(second.read(), "joined")
    if request.then == "end" and not session.is_closed:
        session.close()
    return lines, first.last_value


def _leave(session: GoldenSession, wire: _Wire) -> list[Line]:
    session.wait_paused()
    return [{"request": wire.request.name, "left": "before the answer"}]


class _Wire:
    """One connection with one request on it."""

    def __init__(self, session: GoldenSession, request: GoldenRequest, replies: Mapping[str, Any]) -> None:
        self.request, self._session = request, session
        self.last_value: Any = None
        self._raw, self._is_broken = b"", False
        self._response: http.client.HTTPResponse | None = None
        self._connection = http.client.HTTPConnection(session.address, timeout=WAIT_S)
        key = session.keys.get(request.key, "")
        path = _fill_text(request.path, replies)
        headers = {"content-type": "application/json", "user-agent": "golden", **request.headers}
        if request.key_in == "path":
            path = f"/s/{key}{path}"
        elif request.key != "none":
            headers[request.key_in] = f"Bearer {key}" if request.key_in == "authorization" else key
        body = _spell_body(request, replies)
        self._connection.putrequest(request.method, path, skip_accept_encoding=True)
        for name, value in ({"content-length": str(len(body))} | headers).items():
            self._connection.putheader(name, value)
        self._connection.endheaders(body)

    def close(self) -> None:
        """Close the connection, whether or not all was read."""
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def read(self) -> bytes:
        """Read to the end of the answer; what was read before is part of it."""
        while self._read_some():
            pass
        return self._raw

    def read_until_paused(self, text: str) -> bytes:
        """Read until the stream's joined deltas have this text."""
        while text not in json.dumps(_join_events(_parse_events(self._raw.decode(errors="replace")))):
            if not self._read_some():
                raise ReplayError(f"the stream ended before {text!r}: {self._raw.decode(errors='replace')}")
        self._session.wait_paused()
        return self._raw

    def describe(self, raw: bytes, title: str = "request") -> list[Line]:
        """The answer so far as lines, the first of them with the request's name as its title."""
        response = self._response
        assert response is not None
        headers = {name.lower(): value for name, value in response.getheaders() if name.lower() not in _VOLATILE}
        head: Line = {title: self.request.name, "status": response.status, "headers": headers}
        if self._is_broken:
            head["broken"] = True
        if not response.getheader("content-type", "").startswith("text/event-stream"):
            return [head, self._describe_json(raw.decode(), "body")]
        events = _parse_events(raw.decode())
        values = [line["event"] for line in events if isinstance(line.get("event"), dict)]
        self.last_value = values[-1] if values else None
        return [head, *_join_events(events)]

    def _describe_json(self, text: str, name: str) -> Line:
        line = _parse_json(text, name)
        self.last_value = line.get(name)
        return line

    def _read_some(self) -> bool:
        try:
            if self._response is None:
                self._response = self._connection.getresponse()
            some = self._response.read1(1 << 16)
        except (http.client.IncompleteRead, ConnectionError):
            self._is_broken = True
            return False
        self._raw += some
        return bool(some)


def _spell_body(request: GoldenRequest, replies: Mapping[str, Any]) -> bytes:
    if request.raw is not None:
        return _fill_text(request.raw, replies).encode()
    return b"" if request.send is None else json.dumps(_fill(request.send, replies)).encode()


def _fill_text(parts: str | list[str], replies: Mapping[str, Any]) -> str:
    return "".join([_fill(part, replies) for part in ([parts] if isinstance(parts, str) else parts)])


def _fill(value: Any, replies: Mapping[str, Any]) -> Any:
    """Replace `$900*word` by the word so many times, and `$NAME:a.0.b` by that part of an earlier answer."""
    if isinstance(value, dict):
        return {name: _fill(each, replies) for name, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, replies) for each in value]
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if repeated := _REPEATED.fullmatch(value):
        return repeated[2] * int(repeated[1])
    name, _, path = value[1:].partition(":")
    found = replies.get(name)
    for step in path.split("."):
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError) as error:
            raise ReplayError(f"the answer of {name} has no {path}") from error
    return found


def _parse_json(text: str, name: str) -> Line:
    """A JSON value as a line that has its every byte: `raw` where the usual compact spelling would not give it."""
    try:
        value = json.loads(text)
    except ValueError:
        return {"raw": text}
    for encoding in ("ascii", "utf-8"):
        if json.dumps(value, separators=(",", ":"), ensure_ascii=encoding == "ascii") == text:
            return {name: value} if encoding == "ascii" else {name: value, "encoding": encoding}
    return {"raw": text}


def _parse_events(text: str) -> list[Line]:
    """The complete events of a stream; a rest without its end is `raw`. Numbers that count up from 0 are left out."""
    *blocks, rest = text.split("\n\n")
    lines = [_parse_event(block) for block in blocks] + ([{"raw": rest}] if rest else [])
    numbered = [line["event"] for line in lines if "sequence_number" in _data_of(line)]
    if [event["sequence_number"] for event in numbered] == list(range(len(numbered))):
        for event in numbered:
            del event["sequence_number"]
    return lines


def _parse_event(block: str) -> Line:
    parts = _BLOCK.fullmatch(block)
    if parts is None:
        return {"raw": block}
    if parts["data"] == "[DONE]":
        return {"event": "[DONE]"}
    line = _parse_json(parts["data"], "event")
    return line if parts["name"] == _data_of(line).get("type") else {**line, "name": parts["name"]}


def _data_of(line: Line) -> dict[str, Any]:
    event = line.get("event")
    return event if isinstance(event, dict) else {}


def _join_events(lines: Sequence[Line]) -> list[Line]:
    """Join the deltas of each kind that no other event parts; the events of each choice come together."""
    choices = [line for line in lines if _choices_of(line)]
    others = [line for line in lines if not _choices_of(line)]
    choices.sort(key=lambda line: _choices_of(line)[0]["index"])
    joined: list[Line] = []
    for line in [*choices, *others]:
        if not _is_delta(line) or not _join_delta(joined, line):
            joined.append(line)
    return joined


def _join_delta(lines: list[Line], delta: Line) -> bool:
    """Join the delta to the last of its kind; nothing but deltas may lie between. False if there is none."""
    for at in range(len(lines) - 1, -1, -1):
        both = _join_values(lines[at], delta)
        if both is not None:
            lines[at] = both
            return True
        if not _is_delta(lines[at]):
            return False
    return False


def _choices_of(line: Line) -> list[dict[str, Any]]:
    """The choices of a delta: OpenAI's, or Gemini's candidates before the last event."""
    event = _data_of(line)
    choices: list[dict[str, Any]] = event.get("choices") or event.get("candidates") or []
    return [] if any("finishReason" in choice for choice in choices) else choices


def _is_delta(line: Line) -> bool:
    kind = _data_of(line).get("type", "")
    return bool(_choices_of(line)) or kind.endswith(".delta") or kind == "content_block_delta"


def _join_values(before: dict[str, Any], after: dict[str, Any], *, fewer: bool = False) -> dict[str, Any] | None:
    """Two objects as one, texts that grow joined; None where they differ in more. `fewer`: `after` may lack keys."""
    if not (after.keys() <= before.keys() if fewer else after.keys() == before.keys()):
        return None
    both = dict(before)
    for name, new in after.items():
        old = before[name]
        if isinstance(old, str) and isinstance(new, str) and name in _GROWING:
            both[name] = old + new
        elif isinstance(old, dict) and isinstance(new, dict):
            both[name] = _join_values(old, new, fewer=fewer)
        elif isinstance(old, list) and isinstance(new, list) and name in _SINGLE_LISTS:
            both[name] = [_join_values(old[0], new[0], fewer=name == "tool_calls")] if len(new) == len(old) == 1 else 0
        elif isinstance(old, list) and isinstance(new, list) and name in _GROWING_LISTS:
            both[name] = old + new
        elif old != new:
            return None
        if both[name] in (None, [None], 0) and both[name] != new:
            return None
    return both


class _Placeholders:
    """Puts placeholders for what is new at each run, numbered in order of appearance in the session."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._ids: dict[str, str] = {}

    def put(self, value: Any) -> Any:
        """The value with its placeholders."""
        if isinstance(value, dict):
            return {
                name: "<time>" if name in _TIMES and isinstance(each, int) and each > 1_000_000_000 else self.put(each)
                for name, each in value.items()
            }
        if isinstance(value, list):
            return [self.put(each) for each in value]
        if isinstance(value, str):
            value = _REQUEST_ID.sub("<request id>", value.replace(self._address, "<address>"))
            return _ID.sub(lambda found: self._ids.setdefault(found[0], f"<id {len(self._ids) + 1}>"), value)
        return value
