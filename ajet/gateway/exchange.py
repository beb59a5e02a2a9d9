"""RequestExchange: one HTTP request for replies, from its body to the last byte of the answer.

Invariant: every request gets a status and an error in the client's dialect, or frees its resources if the client is
gone. The calls of a client that leaves are aborted unless another client waits for their replies. A slow client delays
no other client.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from loguru import logger

from ajet.gateway.asgi import (
    ADDRESS_FIELDS,
    JSON_HEADER,
    LOST,
    WATCH,
    Leave,
    Receive,
    Scope,
    Send,
    encode_json,
    list_refusal_headers,
    send_json,
)
from ajet.gateway.dialects.contract import Caller, Dialect
from ajet.gateway.inflight_call import NO_RETRY, InflightCall, RetryHint
from ajet.gateway.keys import Grant, check_name
from ajet.gateway.limits import PEER, BodyBytes
from ajet.gateway.reply import ReplyReader
from ajet.gateway.request import ParsedRequest, Refused
from ajet.gateway.session import Session
from ajet.gateway.stream_pacing import StreamPacing
from ajet.schema.bounded_json import (
    LONG_BYTES,
    TooManyNodesError,
    load_json,
    may_hold_surrogates,
    parse_int,
)
from ajet.tokens.tool_calls import finite, no_constant

MAX_BODY = 64 << 20
"""Limit on the bytes of a request's body."""
_DECODE = json.JSONDecoder(parse_constant=no_constant, parse_float=finite, parse_int=parse_int).decode
_SCHEMA_FIELDS = frozenset(
    {
        *("response_format", "text", "output_config", "output_format", "tools"),
        *("generationConfig", "generation_config", "toolConfig", "tool_config"),
    }
)
_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class RequestExchange:
    """One request for replies, and the answer to one client."""

    def __init__(
        self,
        dialect: Dialect,
        pacing: StreamPacing,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[bytes, bytes],
        request_id: str,
    ) -> None:
        self._dialect, self._pacing = dialect, pacing
        self._scope = scope
        self._receive = receive
        self._send = send
        self._headers = headers
        self._request_id = request_id
        encoded_id = request_id.encode()
        self._id_headers = [
            (b"request-id", encoded_id),
            (b"x-request-id", encoded_id),
        ]  # names of Anthropic and OpenAI
        self._wake_future: asyncio.Future[None] | None = None
        self._has_news = False
        """True if an event happened since the last reset."""
        self._is_collecting = False
        """True while tokens collect. Only the end of a reply or a disconnect wakes the exchange then."""
        self._has_left = self._has_ended = False
        """True after a disconnect of the client; true if a reply has ended since the last reset."""
        self._is_counted = False
        """True if the client is counted in `InflightCall.deliveries`."""
        self.has_started = False
        """True once the head of the answer was sent."""

    async def run(self, secret: str, grant: Grant[Session]) -> None:
        """Answer a request whose key is valid.

        Args:
            secret: The key.
            grant: The session, agent and target of the key.
        """
        grant.session.requests += 1
        try:
            peer = self._scope["state"].get(PEER)
            if peer is not None:
                peer.welcome()
            try:
                call = await self._open_call(secret, grant)
            except Refused as refused:
                await self.refuse(refused)
                return
            except RecursionError:
                await self.refuse(Refused("The request's JSON is nested too deeply.", code="invalid_json"))
                return
            if call is not None:
                await self._deliver_replies(call, grant.session)
        finally:
            grant.session.requests -= 1

    async def refuse(self, refused: Refused) -> None:
        """Answer the request with an error."""
        self.has_started = True
        body = self._dialect.format_error(refused, self._request_id)
        with suppress(OSError):  # the client has left
            await send_json(self._send, refused.status, body, [*list_refusal_headers(refused), *self._id_headers])

    async def _open_call(self, secret: str, grant: Grant[Session]) -> InflightCall | None:
        """Read the request and start its call, or join the call that it repeats. Raises Refused.

        Returns `None` if the request is answered already or the client has left.
        """
        headers, session = self._headers, grant.session
        body = await read_body(self._scope, headers, self._receive)
        if body is None:
            return None
        parts = (
            self._dialect.path.encode(),
            repr(self._scope.get(ADDRESS_FIELDS, "")).encode(),
            secret.encode(),
            headers.get(b"x-ajet-agent", b""),
            headers.get(b"x-ajet-target", b""),
            body,
        )
        is_long = len(body) > LONG_BYTES
        digest = await asyncio.to_thread(digest_request, *parts) if is_long else digest_request(*parts)
        hint = read_retry_hint(headers)
        try:
            call = None if hint is NO_RETRY else session.inflight.find(digest, hint)
            if call is None:
                request = await self._parse_body(body, grant)
                # Parsing may take a while on a thread: an equal request may have started the call meanwhile.
                call = None if hint is NO_RETRY else session.inflight.find(digest, hint)
                if call is None and request.format_count is None:
                    return session.start_call(request, digest=digest, hint=hint)
            if call is not None:
                call.join()
                call.retry_count = max(call.retry_count, hint.count)
                return call
        except Refused as refused:
            session.note_refusal(refused)
            raise
        assert request.format_count is not None
        count = request.format_count(await session.count_tokens(request))
        self.has_started = True
        await send_json(self._send, 200, count, self._id_headers)
        return None

    async def _parse_body(self, body: bytes, grant: Grant[Session]) -> ParsedRequest:
        """Parse the body, on a thread if the body is large or has schemas. Raises Refused."""
        is_long = len(body) > LONG_BYTES
        fields = await asyncio.to_thread(_decode_object, body) if is_long else _decode_object(body)
        fields |= self._scope.get(ADDRESS_FIELDS, {})
        caller = read_caller(grant, self._headers, fields)
        request_filter = grant.session.request_filter
        removed = request_filter.strip(fields) if request_filter is not None else []
        if is_long or (not _SCHEMA_FIELDS.isdisjoint(fields) and _has_schema(fields)):
            request = await asyncio.to_thread(self._dialect.parse, fields, caller)
        else:
            request = self._dialect.parse(fields, caller)
        if removed:
            request.notes = {**request.notes, "left_out": removed}
        return request

    async def _deliver_replies(self, call: InflightCall, session: Session) -> None:
        """Send the replies of a call that the client has joined, then leave the call."""
        state = self._scope["state"]
        abandon = partial(self._abandon_call, call, session)
        is_delivered = False
        unwatch = self._watch_client()
        self._pacing.clients += 1
        call.listeners.append(self._end_reply)
        try:
            if call.request.is_streamed:
                await self._send_events(call, session)
            else:
                await self._send_complete(call, session)
            is_delivered = not self._has_left
        except OSError:
            logger.debug("gateway: a client disconnected before its reply was sent")
        finally:
            self._pacing.clients -= 1
            unwatch()
            call.listeners.remove(self._end_reply)
            try:
                # The cancelled tasks must have recorded their tokens before the call is put aside for a retry.
                if cancelled := call.leave():
                    await asyncio.wait(cancelled)
            finally:
                if is_delivered or call.failure is not None:
                    session.inflight.remove(call)
                else:
                    abandon()
        if is_delivered:
            # The client may still reset the connection without having read the reply. `abandon` then makes it available
            # again.
            state[LOST] = abandon

    def _abandon_call(self, call: InflightCall, session: Session) -> None:
        """Mark the replies as not received, because the client left without them. A retry may still join the call."""
        call.deliveries -= self._is_counted
        self._is_counted = False
        session.inflight.abandon(call)

    def _watch_client(self) -> Callable[[], object]:
        """Register for the client's disconnect. Return the function that unregisters.

        Without a connection that reports it, a task waits for the disconnect.
        """
        watch: Callable[[Leave | None], None] | None = self._scope["state"].get(WATCH)
        if watch is not None:
            watch(self._handle_leave)
            return partial(watch, None)
        task = asyncio.ensure_future(_wait_for_disconnect(self._receive))
        task.add_done_callback(lambda _: self._handle_leave())
        return task.cancel

    def _handle_leave(self) -> None:
        """Note that the client has left, and wake the sender."""
        self._has_left = self._has_news = True
        self._wake_up()

    def _end_reply(self) -> None:
        """Note that a reply has ended, and wake the sender even if it is collecting tokens."""
        self._has_ended = self._has_news = True
        self._wake_up()

    def _add_news(self) -> None:
        """Note new output of a reply, and wake the sender unless it is collecting tokens."""
        self._has_news = True
        if not self._is_collecting:
            self._wake_up()

    def _wake_up(self) -> None:
        if self._wake_future is not None and not self._wake_future.done():
            self._wake_future.set_result(None)

    async def _wait_for_news(self) -> None:
        """Wait for new output, the end of a reply or a disconnect. Return at once if one came since the last reset."""
        if not self._has_news:
            self._wake_future = asyncio.get_running_loop().create_future()
            await self._wake_future

    async def _collect_tokens(self, seconds: float) -> None:
        """Wait while tokens collect, at most for `seconds`, until a reply ends or the client leaves."""
        if self._has_left or self._has_ended:
            return
        loop = asyncio.get_running_loop()
        self._wake_future, self._is_collecting = loop.create_future(), True
        due = loop.time() + seconds
        timer = loop.call_at(due, self._wake_up)
        try:
            await self._wake_future
        finally:
            timer.cancel()
            self._is_collecting = False
        if not self._has_left and not self._has_ended:
            self._pacing.add_lateness(max(0.0, loop.time() - due))

    async def _send_complete(self, call: InflightCall, session: Session) -> None:
        """Wait until all replies are complete, and send them as one JSON answer."""
        loop = asyncio.get_running_loop()
        while not self._has_left and not call.is_settled:
            self._wake_future = loop.create_future()
            await self._wake_future
        if self._has_left:
            return
        answer: Mapping[str, Any] = {}
        refused = call.find_refusal()
        if refused is None:
            try:
                answer = self._dialect.format_reply(call.request, call.replies)
            except Refused as error:  # the dialect cannot express the chat engine's reply
                refused = error
        if refused is not None:
            self._note_refusal(refused, call, session)
            await self.refuse(refused)
            return
        self._is_counted = True  # before sending: the client may end the episode at once
        call.deliveries += 1
        content = encode_json(answer).encode()
        head = [JSON_HEADER, (b"content-length", b"%d" % len(content)), *self._id_headers]
        self.has_started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": head})
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    async def _send_events(self, call: InflightCall, session: Session) -> None:
        """Send events as they arrive. An error before the first event still gets its own status."""
        writer = self._dialect.build_writer(call.request)
        readers = [ReplyReader(reply, self._add_news) for reply in call.replies]
        begun, finished = [False] * len(readers), [False] * len(readers)
        try:
            while not self._has_left:
                self._has_news = self._has_ended = False
                is_settled = call.is_settled  # the end of a reply is sent together with its last tokens
                events: list[bytes] = []
                for choice, reader in enumerate(readers):
                    chunks, reply = reader.read_chunks(), reader.reply
                    ends = not finished[choice] and reply.message is not None
                    if not begun[choice] and (chunks or ends):
                        begun[choice] = True
                        events.append(writer.begin_reply(choice))
                    events += [writer.write_chunk(choice, chunk) for chunk in chunks]
                    if ends:
                        finished[choice] = True
                        events.append(writer.end_reply(choice, reply))
                if is_settled:
                    refused = call.find_refusal()
                    if refused is None:
                        self._is_counted = True
                        call.deliveries += 1
                        events.append(writer.close(call.replies))
                    else:
                        self._note_refusal(refused, call, session)
                        if not self.has_started and not events:
                            await self.refuse(refused)
                            return
                        events.append(writer.fail(refused))
                data = b"".join(events)
                if data:
                    if not self.has_started:
                        self.has_started = True
                        head = [*_EVENT_STREAM, *self._id_headers]
                        await self._send({"type": "http.response.start", "status": 200, "headers": head})
                    await self._send({"type": "http.response.body", "body": data, "more_body": not is_settled})
                if is_settled:
                    return
                if data and (seconds := self._pacing.flush_interval):
                    await self._collect_tokens(seconds)
                await self._wait_for_news()
        finally:
            for reader in readers:
                reader.close()

    def _note_refusal(self, refused: Refused, call: InflightCall, session: Session) -> None:
        """Record why the request failed as the episode's last refusal, also if another of its replies ended later."""
        call.refusal = refused
        session.note_refusal(refused, is_last=True)


async def read_body(scope: Scope, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
    """Return the request's body, or None if the client left meanwhile. Raises Refused."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > MAX_BODY:
        raise _build_too_large()
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    body = message.get("body", b"")
    if (
        not message.get("more_body", False)
        and len(body) <= min(LONG_BYTES, MAX_BODY)
        and PEER not in scope.get("state", ())
    ):
        return bytes(body)  # an in-process request with a complete body
    parts: list[bytes] = []
    size = 0
    with BodyBytes(scope) as buffered:
        while message["type"] != "http.disconnect":
            part = message.get("body", b"")
            size += len(part)
            if size > MAX_BODY:
                raise _build_too_large()
            buffered.add(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return await asyncio.to_thread(b"".join, parts) if size > LONG_BYTES else b"".join(parts)
            message = await receive()
    return None


def _build_too_large() -> Refused:
    return Refused(f"The request's body exceeds {MAX_BODY >> 20} MiB.", status=413, code="request_too_large")


def read_caller(grant: Grant[Session], headers: Mapping[bytes, bytes], body: Mapping[str, Any]) -> Caller:
    """Return the caller of a request. Raises Refused for an invalid name.

    The most specific name wins: the suffix of the model's name (`ajet@agent`, `ajet@agent:target`), then the headers,
    then the grant of the key. An agent named without a target is its own target.
    """
    agent: str | None = None
    target: str | None = None
    model = body.get("model")
    if isinstance(model, str) and "@" in model:
        name, _, suffix = model.rpartition("@")
        if name in (grant.session.model_name, "ajet"):
            agent_name, colon, target_name = suffix.partition(":")
            agent = check_name(agent_name, "model")
            target = check_name(target_name, "model") if colon else None
    if agent is None and b"x-ajet-agent" in headers:
        agent = check_name(headers[b"x-ajet-agent"].decode("latin-1").strip(), "x-ajet-agent")
    if target is None and b"x-ajet-target" in headers:
        target = check_name(headers[b"x-ajet-target"].decode("latin-1").strip(), "x-ajet-target")
    if target is None:
        target = grant.target if agent is None or agent == grant.agent else ""
    return Caller(grant.agent if agent is None else agent, target, grant.debug_model, grant.session.dialect_state)


def read_retry_hint(headers: Mapping[bytes, bytes]) -> RetryHint:
    """Return the retry count and the idempotency key in a request's headers, or NO_RETRY without them."""
    count, key = headers.get(b"x-stainless-retry-count", b"0"), headers.get(b"idempotency-key")
    if count == b"0" and not key:
        return NO_RETRY
    return RetryHint(int(count) if count.isdigit() and len(count) < 9 else 0, key or None)


def digest_request(*parts: bytes) -> bytes:
    """Return a digest by which a retry of a request is recognised.

    Args:
        parts: Bytes that make a request equal to another: path, key, headers, body.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))  # so that text moved between two parts changes the digest
        digest.update(part)
    return digest.digest()


def _decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a request's body. Raises Refused for any other bytes."""
    try:
        value = load_json(body, _DECODE)
        if may_hold_surrogates(body):  # a lone surrogate is no text: encoding it raises the ValueError handled below
            json.dumps(value, ensure_ascii=False).encode()
    except TooManyNodesError as error:
        raise Refused(f"The request's body is too large: {error}.", status=413, code="request_too_large") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"The request's body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise Refused("The request's body must be a JSON object.", code="invalid_json")
    return value


def _has_schema(body: Mapping[str, Any]) -> bool:
    """Return True if the request has a schema to check: a reply format or a strict tool."""
    tools = body.get("tools")
    if any(body.get(name) for name in _SCHEMA_FIELDS if name != "tools"):
        return True
    return isinstance(tools, list) and any(
        isinstance(tool, dict)
        and (tool.get("strict") or isinstance(function := tool.get("function"), dict) and function.get("strict"))
        for tool in tools
    )


async def _wait_for_disconnect(receive: Receive) -> None:
    """Read ASGI messages until the client's disconnect."""
    while (await receive())["type"] != "http.disconnect":
        pass
