"""Proxy: a client's request to an endpoint and the endpoint's bytes back, with a copy of both for its session.

Invariant: method, path, query, body and reply are passed as they are, piece by piece; headers but for those of the
connection and ajet's own. Keys go through and are kept nowhere, cookies neither: a session of a client that names none
is called by a digest, keyed by a secret of this process. An endpoint that is not reached is a 502 in the client's
dialect, one that breaks off breaks the client's stream off.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar
from urllib.parse import unquote

import httpx
from loguru import logger

from ajet.engine.remote_server import build_timeout
from ajet.gateway.asgi import Receive, Scope, Send, break_off, end_by_shutdown, send_json, send_refusal
from ajet.gateway.dialects import anthropic, chat
from ajet.gateway.exchange import read_body
from ajet.gateway.limits import after_wrong_key, welcome
from ajet.gateway.observing.copied_reply import CopiedReply
from ajet.gateway.observing.feedback import read_feedback
from ajet.gateway.observing.hidden import Hidden
from ajet.gateway.observing.requests import DIALECTS, Sent, read_request, without_keys
from ajet.gateway.observing.sessions import Sessions
from ajet.gateway.request import Refused
from ajet.record.seldom import Seldom
from ajet.schema.addresses import hostname_in_header, is_loopback
from ajet.schema.bounded_json import LONG_BYTES, load_json
from ajet.schema.settled import settled, settled_json

T = TypeVar("T")
SESSION, AGENT = b"x-ajet-session", b"x-ajet-agent"
"""Headers by which a client names its session, and which of several agents it is."""
DEFAULT_AGENT = "agent"
_CONNECTION = {
    b"host", b"content-length", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade",
    b"proxy-authorization", b"proxy-authenticate", b"accept-encoding",
}  # fmt: skip
_KEYS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_PIECE_BYTES = 1 << 20
_DECODED = 4
"""So often a path is decoded, at most."""
ENDED = "the proxy was ended before the reply was whole"
TIMEOUT = 600.0
"""Seconds for which an endpoint may send nothing; as long as OpenAI's clients wait themselves."""
SAID_AGAIN = 60.0
"""Seconds before what goes wrong at an endpoint is said again."""


class Proxy:
    """The ASGI app. `endpoint` ends in /v1. `key`: what feedback must bear; None: nothing. `token_ids`: ask the
    endpoint for them (vLLM's `return_token_ids`), which changes the request and adds to the reply. `timeout`: see
    TIMEOUT."""

    def __init__(
        self,
        endpoint: str,
        sessions: Sessions,
        *,
        key: str | None = None,
        token_ids: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        self._endpoint, self._sessions = endpoint.rstrip("/"), sessions
        self._key, self._token_ids, self._timeout = key, token_ids, timeout
        self._seldom = Seldom(SAID_AGAIN)
        self._salt = secrets.token_bytes(16)
        nobodys = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # one client's are not for another
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(timeout=build_timeout(timeout), limits=limits, cookies=nobodys)
        self._running: set[asyncio.Task[Any]] = set()
        self._writing: set[asyncio.Task[Any]] = set()
        self._closing = False

    @property
    def idle(self) -> bool:
        """Nobody is being answered. From any thread."""
        return not self._running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        welcome(scope)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        path = ""
        try:
            named, path = _named(scope)
            if path != "/health":
                _refuse_pages(scope)
            if path == "/health":
                await send_json(send, 200, {"status": "ok"})
            elif path in ("/feedback", "/v1/feedback"):
                await self._take_feedback(scope, headers, receive, send, named)
            elif path.startswith("/v1/"):
                await self._pass(scope, headers, receive, send, path.removeprefix("/v1/"), named)
            else:
                raise Refused(f"Not Found: {path}. What is passed on begins with /v1/.", status=404)
        except Refused as refused:
            if refused.status == 401:
                await after_wrong_key(scope)
            allow = ((b"allow", b"POST"),) if refused.status == 405 else ()
            await send_refusal(send, refused, _error(path, refused), allow)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            await end_by_shutdown(scope, send, lambda ended: _error(path, ended))
        finally:
            self._running.discard(task)

    async def close(self) -> None:
        """End what is under way, which is recorded as such; its clients are told, or their streams broken off."""
        self._closing = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*self._writing, return_exceptions=True)
        await self._client.aclose()

    async def _take_feedback(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: Send, named: str | None
    ) -> None:
        if scope["method"] != "POST":
            raise Refused("Feedback is a POST.", status=405)
        if self._key is not None and not _bears(headers, self._key):
            raise Refused("Incorrect key for feedback.", status=401, code="invalid_api_key")
        kind = headers.get(b"content-type", b"").split(b";")[0].strip()
        if kind != b"application/json":  # no web page sends it here without being asked
            raise Refused("Feedback is sent as content-type: application/json.", status=415)
        body = await read_body(scope, headers, receive)
        if body is None:
            return
        try:
            said = await asyncio.to_thread(_parse, body) if len(body) > LONG_BYTES else _parse(body)
        except (ValueError, RecursionError) as error:
            raise Refused(f"The request's body is not valid JSON: {error}", code="invalid_json") from None
        if named is not None and isinstance(said, dict):
            said.setdefault("session", named)
        try:
            told = await self._to_its_end(self._sessions.feedback(read_feedback(said, time.time())))
        except OSError as problem:
            why = f"The feedback could not be written: {problem.strerror}."
            raise Refused(why, status=507, code="not_recorded") from problem
        await send_json(send, 200, told)

    async def _pass(
        self,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        receive: Receive,
        send: Send,
        path: str,
        named: str | None,
    ) -> None:
        body = await read_body(scope, headers, receive)
        if body is None:
            return
        hidden = Hidden(headers, scope.get("query_string", b""))
        dialect = DIALECTS.get(path) if scope["method"] == "POST" else None
        session, asked = None, None
        if dialect is not None:
            name = named or _header(headers, SESSION) or self._digest(headers)
            agent = _header(headers, AGENT) or DEFAULT_AGENT
            read = partial(self._read, hidden, dialect, body)
            is_long = len(body) > LONG_BYTES
            said, sent, sent_on = await asyncio.to_thread(read) if is_long else read()
            body = sent_on
            if sent is not None:
                beginning = self._sessions.begin(name, dialect, said, sent, agent, is_long=is_long)
                session, asked = await self._to_its_end(beginning)
        copy = CopiedReply(dialect if asked is not None else None, hidden)
        passing = asyncio.ensure_future(self._relay(scope, body, path, send, copy))
        watching = asyncio.ensure_future(_left(receive))
        try:
            if self._closing:  # while the call was begun
                raise asyncio.CancelledError
            await asyncio.wait([passing, watching], return_when=asyncio.FIRST_COMPLETED)
            if not passing.done():
                copy.left()
        except asyncio.CancelledError:
            if not passing.done():
                copy.problem, copy.finish = ENDED, "aborted"
            if not self._closing or not passing.done():
                raise
        finally:
            passing.cancel()
            watching.cancel()
            try:
                with suppress(asyncio.CancelledError):
                    await passing
            finally:
                ended = await self._to_its_end(asyncio.to_thread(copy.ended)) if copy.is_long else copy.ended()
                if session is not None and asked is not None:
                    await self._to_its_end(self._sessions.call_ended(session, asked, ended))
                self._say(copy, asked.call.error if asked is not None else ended.problem)
        if copy.broken:
            await break_off(scope)

    async def _to_its_end(self, writing: Coroutine[Any, Any, T]) -> T:
        """Whether or not anybody still waits: half of it would be in the file."""
        task = asyncio.ensure_future(writing)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            return await task

    def _say(self, copy: CopiedReply, problem: str | None) -> None:
        """Tell whoever watches what went wrong at the endpoint: the same not all the time."""
        if not problem or (copy.finish == "aborted" and not copy.waited):
            return
        if self._seldom.due(problem):
            logger.warning("{}: {}", self._endpoint, problem)

    async def _relay(self, scope: Scope, body: bytes, path: str, send: Send, copy: CopiedReply) -> None:
        """Ask the endpoint and send on what it says."""
        query = scope.get("query_string", b"").decode("latin-1")
        url = f"{self._endpoint}/{path}" + (f"?{query}" if query else "")
        asked = [(name, value) for name, value in scope["headers"] if _passed(name)]
        asked.append((b"accept-encoding", b"identity"))
        content: bytes | AsyncIterator[bytes] | None = body or None
        if len(body) > _PIECE_BYTES:
            asked.append((b"content-length", b"%d" % len(body)))
            content = _in_pieces(body)
        request = self._client.build_request(scope["method"], url, headers=asked, content=content)
        begun = False
        try:
            reply = await self._client.send(request, stream=True)
            try:
                told = [(name.lower(), value) for name, value in reply.headers.raw]
                told = [each for each in told if each[0] == b"content-length" or each[0] not in _CONNECTION]
                copy.begin(reply)
                await send({"type": "http.response.start", "status": reply.status_code, "headers": told})
                begun = True
                async for part in reply.aiter_raw():
                    copy.feed(part)
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            finally:
                await reply.aclose()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            copy.left()
        except httpx.HTTPError as problem:
            hangs = isinstance(problem, (httpx.ReadTimeout, httpx.WriteTimeout))
            why = f"nothing came for {self._timeout:g} s (--timeout)" if hangs else _named_error(problem)
            copy.finish = "error"
            if begun:
                copy.problem, copy.broken = f"the endpoint broke off its reply: {why}", True
                return
            copy.problem = f"the endpoint did not answer: {why}"
            status, code = (504, "endpoint_timeout") if hangs else (502, "endpoint_unreachable")
            refused = Refused(copy.problem, status=status, code=code)
            await send_refusal(send, refused, _error("/v1/" + path, refused))

    def _read(self, hidden: Hidden, dialect: str, body: bytes) -> tuple[Any, Sent | None, bytes]:
        """Return (what is recorded of a request, the same as read; None where it is no object, the body to send on)."""
        said = without_keys(hidden.tree(settled_json(body)))
        if not isinstance(said, dict):
            return said, None, body
        return said, read_request(dialect, said), self._with_token_ids(body, dialect)

    def _with_token_ids(self, body: bytes, dialect: str) -> bytes:
        if not self._token_ids or dialect not in ("chat", "completions"):
            return body
        try:
            return json.dumps({**load_json(body), "return_token_ids": True}).encode()
        except (ValueError, TypeError, RecursionError):  # the endpoint says what is wrong with it
            return body

    def _digest(self, headers: Mapping[bytes, bytes]) -> str:
        """A name for a client that gives none: the same for the same key while this process lives."""
        offered = next((headers[name] for name in _KEYS if headers.get(name)), None)
        return (
            "anonymous" if offered is None else "key-" + hmac.new(self._salt, offered, hashlib.sha256).hexdigest()[:12]
        )


def _named_error(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}".rstrip(": ")


def _named(scope: Scope) -> tuple[str | None, str]:
    """(the session that a path /s/NAME/… names, the path after it)."""
    path = scope["raw_path"].decode("latin-1")  # as it was sent: %2F is no /
    if _leads_out(path):
        raise Refused(f"Not Found: {path}.", status=404)
    if not path.startswith("/s/"):
        return None, path
    name, _, rest = path.removeprefix("/s/").partition("/")
    return _checked(unquote(name)), "/" + rest


def _leads_out(path: str) -> bool:
    """True if a server that decodes a path, several times perhaps, could read one of another folder in it."""
    plain = path
    try:
        for _ in range(_DECODED):
            plain = unquote(plain, errors="strict")
    except UnicodeDecodeError:  # an overlong form of a dot, for one
        return True
    if unquote(plain) != plain:
        return True
    parts = re.split(r"[/\\]", plain)
    return _CONTROL.search(plain) is not None or any(part.partition(";")[0] in (".", "..") for part in parts)


def _refuse_pages(scope: Scope) -> None:
    """Raises Refused for a web page of another machine, also one that gave its own name to this machine's address."""
    if _foreign_values(scope, b"origin"):
        raise Refused("A page of another machine may not use this proxy.", status=403)
    here = scope.get("server")
    if here and is_loopback(here[0]) and (hosts := _foreign_values(scope, b"host")):
        raise Refused(f"This address is not {hosts[0]!r}.", status=421)


def _foreign_values(scope: Scope, header: bytes) -> list[str]:
    """The values of all headers of a name that name another machine. Another program may read any of them."""
    values = [value.decode("latin-1").strip() for name, value in scope["headers"] if name == header]
    return [value for value in values if value and not is_loopback(hostname_in_header(value))]


def _parse(body: bytes) -> Any:
    return settled(load_json(body))


def _header(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else _checked(value.decode("utf-8", "replace").strip())


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused("A session or agent is named by 1 to 128 printable characters.", code="invalid_value")
    return name


def _passed(name: bytes) -> bool:
    return name not in _CONNECTION and not name.startswith(b"x-ajet-")


def _bears(headers: Mapping[bytes, bytes], key: str) -> bool:
    offered = headers.get(b"authorization", b"").rpartition(b" ")[2]
    return hmac.compare_digest(offered, key.encode())


def _error(path: str, refused: Refused) -> dict[str, Any]:
    return anthropic.error_body(refused) if path.startswith("/v1/messages") else chat.error_body(refused)


async def _in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """Between two of them others are answered: to copy 60 MiB at once takes 0.1 s."""
    view = memoryview(body)
    for start in range(0, len(body), _PIECE_BYTES):
        yield bytes(view[start : start + _PIECE_BYTES])


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
