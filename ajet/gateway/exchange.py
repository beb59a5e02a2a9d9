"""Exchange: one HTTP request and its reply, and the client, who may leave, read slowly, or ask again.

Invariant: whatever a client sends or stops doing, it is answered with a status and an error in its own dialect, or what
its request held is freed; a client that leaves aborts its calls unless another takes their replies, a slow one holds
up nobody else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from loguru import logger

from ajet.gateway.callers import Headers, caller_of, grant_of
from ajet.gateway.dialects.contract import Asked, Dialect
from ajet.gateway.keys import Grant, Keys
from ajet.gateway.limits import Held, after_wrong_key, peer_of, welcome
from ajet.gateway.reply import Reader
from ajet.gateway.retries import Asking, Signal, digest_of
from ajet.gateway.session import Session
from ajet.gateway.turn import Refused
from ajet.schema.bounded_json import (
    LONG_BYTES,
    TooManyNodesError,
    decode_json,
    load_json,
    may_hold_surrogates,
    parse_int,
)
from ajet.tokens.tool_calls import finite, no_constant

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MAX_BODY = 64 << 20
"""Bytes of a request's body."""
LOST = "ajet.lost"
"""In a scope's state: what to call when a client proves to have left without the reply that was sent to it."""
WATCH = "ajet.watch"
"""In a scope's state: takes what to call when the client leaves (None: nothing any more). Where it is absent, a task
waits for what `receive` says."""
REQUEST_ID = "ajet.request_id"
"""In a scope's state: the id of the request, which its answer bears in a header."""
Leave = Callable[[], None]
NO_RETRY = (b"x-should-retry", b"false")
"""By which OpenAI's and Anthropic's clients hear that they should not ask again."""
_JSON = (b"content-type", b"application/json")
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
_DECODE = json.JSONDecoder(parse_constant=no_constant, parse_float=finite, parse_int=parse_int).decode
_SCHEMA_FIELDS = ("response_format", "text", "output_config", "output_format")
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Endpoint:
    """The route of one dialect."""

    def __init__(self, keys: Keys[Session], dialect: Dialect) -> None:
        self._keys, self._dialect = keys, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        try:
            secret, grant = grant_of(self._keys, scope, headers)
        except Refused as refused:
            if refused.status == 401:
                await after_wrong_key(scope)
            await self._refuse(scope, send, refused)
            return
        grant.session.requests += 1
        try:
            welcome(scope)
            await self._answer(scope, receive, send, headers, secret, grant)
        finally:
            grant.session.requests -= 1

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, secret: str, grant: Grant[Session]
    ) -> None:
        try:
            body = await request_body(scope, headers, receive)
            if body is None:
                return
            session = grant.session
            digesting = partial(
                digest_of,
                self._dialect.path.encode(),
                secret.encode(),
                headers.get(b"x-ajet-agent", b""),
                headers.get(b"x-ajet-target", b""),
                body,
            )
            digest = await asyncio.to_thread(digesting) if len(body) > LONG_BYTES else digesting()
            signal = Signal.of(headers)
            asking = session.askings.earlier(digest, signal) if signal else None
            if asking is None:
                try:
                    asked = await self._read(body, headers, grant)
                except Refused as refused:
                    session.note(refused)
                    raise
                asking = session.askings.earlier(digest, signal) if signal else None
            if asking is None:
                if asked.count is not None:
                    await answer(send, 200, asked.count(await session.count(asked.turns[0])))
                    return
                session.load.refuse_more(len(asked.turns))
                asking = Asking(asked, signal)
                session.askings.open(digest, asking)
        except Refused as refused:
            await self._refuse(scope, send, refused)
            return
        except RecursionError:
            await self._refuse(scope, send, Refused("The request is nested too deeply.", code="invalid_json"))
            return
        body = b""  # it is not held for as long as the reply takes
        asking.count = max(asking.count, signal.count)
        lose = partial(session.askings.undelivered, digest, asking)
        exchange = _Exchange(self._dialect, asking, send, session, lose)
        try:
            await exchange.run(scope, receive)
        finally:
            if exchange.delivered or asking.failed:
                session.askings.done(digest, asking)
            else:
                exchange.take_back()
        if exchange.delivered:
            scope["state"][LOST] = exchange.take_back

    async def _read(self, body: bytes, headers: Headers, grant: Grant[Session]) -> Asked:
        """Read a request, on a thread where that takes long: it is large, or asks for schemas. Raises Refused."""
        is_long = len(body) > LONG_BYTES
        told = await asyncio.to_thread(_object, body) if is_long else _object(body)
        read = partial(self._dialect.read, told, caller_of(grant, headers, told))
        return await asyncio.to_thread(read) if is_long or _asks_for_schema(told) else read()

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> None:
        await refuse(send, refused, self._dialect.error(refused, scope["state"][REQUEST_ID]))


class _Exchange:
    """The replies of one asking on their way to one client."""

    def __init__(
        self, dialect: Dialect, asking: Asking, send: Send, session: Session, lose: Callable[[], None]
    ) -> None:
        """`lose`: remembers the asking as one whose client has left without its reply."""
        self._dialect, self._asking, self._send, self._session = dialect, asking, send, session
        self._load, self._lose = session.load, lose
        self._news = asyncio.Event()
        self._rest: asyncio.Future[None] | None = None
        self._tasks: Sequence[asyncio.Task[Any]] = ()
        self._left = self._ended = False
        self._counted = False
        """The client is counted in `Asking.deliveries`."""
        self.delivered = False
        """The client got all of its reply, as far as one can know."""

    async def run(self, scope: Scope, receive: Receive) -> None:
        asking, session = self._asking, self._session
        self._request_id = scope["state"][REQUEST_ID]
        asking.join(session.make, session.check)
        unwatch = self._watch(scope, receive)
        self._load.clients += 1
        self._tasks = asking.tasks  # they stay the same ones while somebody reads
        for task in self._tasks:
            task.add_done_callback(self._wake)
        try:
            if asking.asked.stream:
                await self._write_events()
            else:
                await self._write_whole()
        except OSError:
            logger.debug("a client left before its reply was sent")
        finally:
            self._load.clients -= 1
            unwatch()
            for task in self._tasks:
                task.remove_done_callback(self._wake)
            await asking.leave()

    def take_back(self) -> None:
        """The client has left without its reply: do not count it as received."""
        self._asking.deliveries -= self._counted
        self._counted = False
        self._lose()

    def _count_delivery(self) -> None:
        """Count the replies as received. Before they are sent: their client may end the episode at once."""
        if not self._left:
            self._counted = True
            self._asking.deliveries += 1

    def _note(self, refused: Refused) -> None:
        """Note that the request is answered with an error, whichever of its replies ended last."""
        self._asking.refused = refused
        self._session.note(refused, answered=False)

    def _watch(self, scope: Scope, receive: Receive) -> Callable[[], object]:
        """Be told when the client leaves; what ends that."""
        watch: Callable[[Leave | None], None] | None = scope["state"].get(WATCH)
        if watch is not None:
            watch(self._leave)
            return partial(watch, None)
        task = asyncio.ensure_future(_disconnected(receive))
        task.add_done_callback(lambda _: self._leave())
        return task.cancel

    def _leave(self) -> None:
        self._left = True
        self._news.set()
        self._rise()

    def _wake(self, task: asyncio.Task[Any]) -> None:
        self._ended = True
        self._news.set()
        self._rise()

    async def _gather(self, seconds: float) -> None:
        """Let tokens gather for so long, unless the reply ends or the client leaves before."""
        if self._left or self._ended:
            return
        loop = asyncio.get_running_loop()
        self._rest = loop.create_future()
        due = loop.time() + seconds
        timer = loop.call_at(due, self._rise)
        try:
            await self._rest
        finally:
            timer.cancel()
            self._rest = None
        if not self._left and not self._ended:
            self._load.gathered(max(0.0, loop.time() - due))

    def _rise(self) -> None:
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    def _settled(self) -> bool:
        """Whether all replies are there, or an error instead."""
        done = [task for task in self._tasks if task.done()]
        return bool(done) and (len(done) == len(self._tasks) or self._asking.failed)

    def _error(self) -> Refused | None:
        """Why there is no reply. Raises what is no refusal."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                error = task.exception()
                if isinstance(error, Refused):
                    return error
                if error is not None:
                    raise error
        return None

    async def _send_error(self, refused: Refused) -> None:
        await refuse(self._send, refused, self._dialect.error(refused, self._request_id))

    async def _write_whole(self) -> None:
        while not self._settled() and not self._left:
            self._news.clear()
            await self._news.wait()
        if self._left:
            return
        refused = self._error()
        told: Mapping[str, Any] = {}
        if refused is None:
            try:
                told = self._dialect.reply(self._asking.asked, [task.result() for task in self._tasks])
            except Refused as error:  # a chat engine's reply that this dialect has no form for
                refused = error
        if refused is not None:
            self._note(refused)
            await self._send_error(refused)
        else:
            self._count_delivery()
            await answer(self._send, 200, told)
        self.delivered = not self._left

    async def _write_events(self) -> None:
        """Events as they come; until the first, an error still gets its own status."""
        asking = self._asking
        writer = self._dialect.writer(asking.asked)
        readers = [Reader(reply, self._news.set) for reply in asking.replies]
        begun, ended = [False] * len(readers), [False] * len(readers)
        started = False
        try:
            while not self._left:
                self._news.clear()
                self._ended = False
                settled = self._settled()  # the end of a reply goes out with the last of its tokens
                events: list[bytes] = []
                for choice, reader in enumerate(readers):
                    pieces, turn = reader.read(), None
                    if not ended[choice]:
                        turn = reader.reply.turn
                        ended[choice] = turn is not None
                    if not begun[choice] and (pieces or turn is not None):
                        begun[choice] = True
                        events.append(writer.start(choice))
                    events += [writer.piece(choice, piece) for piece in pieces]
                    if turn is not None:
                        events.append(writer.end(choice, turn))
                if settled:
                    refused = self._error()
                    if refused is None:
                        self._count_delivery()
                    else:
                        self._note(refused)
                    if refused is not None and not started and not events:
                        await self._send_error(refused)
                        break
                    turns = [] if refused else [task.result() for task in self._tasks]
                    events.append(writer.error(refused) if refused else writer.close(turns))
                data = b"".join(events)
                if data and not started:
                    started = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
                if data:
                    await self._send({"type": "http.response.body", "body": data, "more_body": not settled})
                if settled:
                    break
                if data and (breath := self._load.breath):
                    await self._gather(breath)
                await self._news.wait()
        finally:
            for reader in readers:
                reader.close()
        self.delivered = not self._left


async def answer(
    send: Send, status: int, body: Mapping[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a JSON object."""
    content = _ENCODE(body).encode()
    told = [_JSON, (b"content-length", str(len(content)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": content, "more_body": False})


async def refuse(
    send: Send, refused: Refused, body: Mapping[str, Any], headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send an error."""
    later = refused.retry_after
    told = [*headers] if later is None else [*headers, (b"retry-after", str(later).encode())]
    told += [NO_RETRY] if refused.final else []
    await answer(send, refused.status, body, tuple(told))


async def cut_off(scope: Scope, send: Send, error: Callable[[Refused], Mapping[str, Any]]) -> None:
    """The server ends before a request of a connection has all of its reply: its client is told to come again, by an
    `error` in its own dialect, or finds its stream broken off."""
    peer = peer_of(scope)
    if peer is not None and peer.begun:
        await break_off(scope)
        return
    ended = Refused("The server was ended.", status=503, code="ended", retry_after=1)
    await refuse(send, ended, error(ended))


async def break_off(scope: Scope) -> None:
    """Close the client's connection: an end of its stream without the mark."""
    peer = peer_of(scope)
    if peer is not None:
        peer.transport.abort()
        await asyncio.sleep(0)  # uvicorn hears of it, and does not complain of a reply that has no end


async def request_body(scope: Scope, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
    """The request's body; None if the client left meanwhile. Raises Refused."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > MAX_BODY:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    with Held(scope) as held:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > MAX_BODY:
                raise _too_large()
            held.add(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return await asyncio.to_thread(b"".join, parts) if size > LONG_BYTES else b"".join(parts)


def _too_large() -> Refused:
    return Refused(f"The request's body exceeds {MAX_BODY >> 20} MiB.", status=413, code="request_too_large")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = load_json(body, partial(decode_json, decode=_DECODE))
        if may_hold_surrogates(body):
            json.dumps(value, ensure_ascii=False).encode()
    except TooManyNodesError as error:
        raise Refused(f"The request's body is too large: {error}.", status=413, code="request_too_large") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"The request's body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise Refused("The request's body must be a JSON object.", code="invalid_json")
    return value


def _asks_for_schema(body: Mapping[str, Any]) -> bool:
    """True if a schema of the request is to be checked: that of its reply, or of a strict tool."""
    if any(body.get(name) for name in _SCHEMA_FIELDS):
        return True
    tools = body.get("tools")
    return isinstance(tools, list) and any(
        isinstance(tool, dict)
        and (tool.get("strict") or isinstance(function := tool.get("function"), dict) and function.get("strict"))
        for tool in tools
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
