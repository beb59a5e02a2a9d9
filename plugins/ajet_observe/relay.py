"""ObservingRelay: forwards requests to a model endpoint, and records requests and replies by session.

Invariant: method, path, query, body and reply pass unchanged, piece by piece; headers too, except the connection's and
ajet's own. Before a request is forwarded, only its body is parsed, for the record. Keys and cookies pass through and
are never recorded: a session without a name is named by a digest of the client's key and a secret of this process. An
unreachable endpoint is a 502 in the client's protocol. An endpoint that breaks off a reply breaks off the client's
stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
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
from ajet.gateway.remote_stream import DialectName
from ajet.gateway.request import Refused
from ajet.record.rate_limiter import RateLimiter
from ajet.schema.addresses import is_loopback, parse_header_host
from ajet.schema.bounded_json import LONG_BYTES, load_json
from ajet.schema.settled import make_storable
from ajet_observe.feedback import parse_feedback
from ajet_observe.reply_copy import ReplyCopy, build_key_redactor
from ajet_observe.session import read_call
from ajet_observe.sessions import ObservedSessions, RunningCall

T = TypeVar("T")
Headers = Mapping[bytes, bytes]
ENDED = "`ajet observe` was stopped before the reply was complete"
_DIALECTS: Mapping[str, DialectName] = {
    "chat/completions": "chat", "completions": "completions", "responses": "responses", "messages": "anthropic"
}  # fmt: skip
"""The protocol of recorded requests, by the path after /v1/."""
_SESSION, _AGENT = b"x-ajet-session", b"x-ajet-agent"
"""Headers that name the session, and one of several agents."""
_CONNECTION = {
    b"host", b"content-length", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade",
    b"proxy-authorization", b"proxy-authenticate", b"accept-encoding",
}  # fmt: skip
_KEYS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_PIECE_BYTES = 1 << 20
_MAX_DECODED = 4
"""How often a path may be percent-encoded."""
_TIMEOUT_S = 600.0
"""Seconds without data from an endpoint before a timeout; OpenAI's clients wait as long."""
_LOG_EVERY_S = 60.0
"""Seconds before the same problem of the endpoint is logged again."""


class ObservingRelay:
    """The ASGI application that forwards requests to one endpoint."""

    def __init__(
        self,
        endpoint: str,
        sessions: ObservedSessions,
        *,
        key: str | None = None,
        token_ids: bool = False,
        timeout: float = _TIMEOUT_S,
    ) -> None:
        """Prepare the relay.

        Args:
            endpoint: The endpoint's URL; ends in /v1.
            key: The key required for feedback; `None` requires no key.
            token_ids: Request token ids from the endpoint (vLLM's `return_token_ids`): requests and replies then have
                more fields.
            timeout: Seconds without data from the endpoint before a timeout.
        """
        self._endpoint, self._sessions = endpoint.rstrip("/"), sessions
        self._key = key
        self._token_ids = token_ids
        self._timeout = timeout
        self._log_limit = RateLimiter(_LOG_EVERY_S)
        self._salt = secrets.token_bytes(16)
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # a cookie of one client must not reach another
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(timeout=build_timeout(timeout), limits=limits, cookies=no_cookies)
        self._requests: set[asyncio.Task[Any]] = set()
        self._write_tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    @property
    def idle(self) -> bool:
        """True if no request is in progress. Thread-safe."""
        return not self._requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request: /health, feedback, or a path below /v1/ that is forwarded to the endpoint."""
        headers: Headers = dict(scope["headers"])
        welcome(scope)
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        path = ""
        try:
            session, path = _split_path(scope)
            if path == "/health":
                await send_json(send, 200, {"status": "ok"})
                return
            _refuse_pages(scope)
            if path in ("/feedback", "/v1/feedback"):
                await self._receive_feedback(scope, headers, receive, send, session)
            elif path.startswith("/v1/"):
                await self._relay_call(scope, headers, receive, send, path.removeprefix("/v1/"), session)
            else:
                raise Refused(f"Not Found: {path}. This proxy forwards only paths that begin with /v1/.", status=404)
        except Refused as refused:
            # Delay the answer to a wrong key, so that keys cannot be guessed quickly.
            if refused.status == 401:
                await after_wrong_key(scope)
            allow = ((b"allow", b"POST"),) if refused.status == 405 else ()
            await send_refusal(send, refused, _format_error(path, refused), allow)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            await end_by_shutdown(scope, send, partial(_format_error, path))
        finally:
            self._requests.discard(task)

    async def close(self) -> None:
        """End and record all requests. Clients get an error, or their streams break off."""
        self._is_closing = True
        running = list(self._requests)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*self._write_tasks, return_exceptions=True)
        await self._client.aclose()

    async def _receive_feedback(
        self, scope: Scope, headers: Headers, receive: Receive, send: Send, session: str | None
    ) -> None:
        """Record the feedback in a request, and answer with the episode that it belongs to.

        Args:
            session: session named by the request's path, used if the body names none.

        Raises:
            Refused: key, method, type or content is wrong, or the feedback cannot be written.
        """
        if scope["method"] != "POST":
            raise Refused("Send feedback by a POST request.", status=405)
        sent_key = headers.get(b"authorization", b"").rpartition(b" ")[2]
        if self._key is not None and not hmac.compare_digest(sent_key, self._key.encode()):
            raise Refused("The key for feedback is incorrect.", status=401, code="invalid_api_key")
        if headers.get(b"content-type", b"").split(b";")[0].strip() != b"application/json":
            # A web page cannot send this type to another server without a preflight request.
            raise Refused("Send feedback with the header content-type: application/json.", status=415)
        body = await read_body(scope, headers, receive)
        if body is None:
            return
        try:
            fields = await _run_function(len(body) > LONG_BYTES, lambda: make_storable(load_json(body)))
        except (ValueError, RecursionError) as error:
            raise Refused(f"The request's body is not valid JSON: {error}", code="invalid_json") from None
        if session is not None and isinstance(fields, dict):
            fields.setdefault("session", session)
        feedback = parse_feedback(fields, time.time())
        try:
            result = await self._finish_write(self._sessions.add_feedback(feedback))
        except OSError as error:
            reason = f"The feedback could not be written to disk: {error.strerror}."
            raise Refused(reason, status=507, code="not_recorded") from error
        await send_json(send, 200, result)

    async def _relay_call(
        self, scope: Scope, headers: Headers, receive: Receive, send: Send, path: str, named: str | None
    ) -> None:
        """Relay one request to the endpoint, and record it if it is a model call in a known dialect.

        Relaying continues in a task of its own, so that the call is recorded as far as it got when the client leaves.

        Args:
            path: the path after /v1/.
            named: session named by the request's path, or None.
        """
        body = await read_body(scope, headers, receive)
        if body is None:
            return
        redact = build_key_redactor(headers, scope.get("query_string", b""))
        dialect = _DIALECTS.get(path) if scope["method"] == "POST" else None
        running: RunningCall | None = None
        if dialect is not None:
            name = named or _read_name(headers, _SESSION) or self._digest_key(headers)
            agent = _read_name(headers, _AGENT) or "agent"
            is_long = len(body) > LONG_BYTES
            row = await _run_function(is_long, partial(read_call, dialect, agent, body, redact))
            if row is None:
                dialect = None
            else:
                if self._token_ids and dialect in ("chat", "completions"):
                    body = await _run_function(is_long, partial(_add_token_id_request, body))
                running = await self._finish_write(self._sessions.begin(name, row, is_long=is_long))
        reply_copy = ReplyCopy(dialect, redact)
        relay_task = asyncio.ensure_future(self._relay_request(scope, body, path, send, reply_copy))
        leave_task = asyncio.ensure_future(_wait_for_leave(receive))
        try:
            if self._is_closing:  # the relay began to close while the call was begun
                raise asyncio.CancelledError
            await asyncio.wait([relay_task, leave_task], return_when=asyncio.FIRST_COMPLETED)
            if not relay_task.done():
                reply_copy.note_leave()
        except asyncio.CancelledError:
            if not relay_task.done():
                reply_copy.problem, reply_copy.finish = ENDED, "aborted"
            if not self._is_closing or not relay_task.done():
                raise
        finally:
            relay_task.cancel()
            leave_task.cancel()
            try:
                with suppress(asyncio.CancelledError):
                    await relay_task
            finally:
                # The request may be cancelled here, but the session's file must get the complete row.
                reply = await self._finish_write(_run_function(reply_copy.is_long, reply_copy.build_body))
                problem: str | None = reply_copy.problem
                if running is not None:
                    running.row.said = reply
                    running.row.problem = reply_copy.problem
                    running.row.finish = reply_copy.finish
                    await self._finish_write(self._sessions.end(running))
                    problem = running.call.error
                if (
                    problem
                    and (reply_copy.finish != "aborted" or reply_copy.was_silent)
                    and self._log_limit.is_due(problem)
                ):
                    logger.warning("{}: {}", self._endpoint, problem)
        if reply_copy.is_cut:
            await break_off(scope)

    async def _finish_write(self, writing: Coroutine[Any, Any, T]) -> T:
        """Await a write to a session's file even if the request is cancelled.

        Otherwise the file would hold half a row.
        """
        task = asyncio.ensure_future(writing)
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            return await task

    async def _relay_request(self, scope: Scope, body: bytes, path: str, send: Send, copy: ReplyCopy) -> None:
        """Forward a request to the endpoint and the reply to the client, and feed the reply to `copy`."""
        query = scope.get("query_string", b"").decode("latin-1")
        url = f"{self._endpoint}/{path}" + (f"?{query}" if query else "")
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name not in _CONNECTION and not name.startswith(b"x-ajet-")
        ]
        # The copy for the record needs an uncompressed reply.
        headers.append((b"accept-encoding", b"identity"))
        content: bytes | AsyncIterator[bytes] | None = body or None
        if len(body) > _PIECE_BYTES:
            headers.append((b"content-length", b"%d" % len(body)))
            content = _cut_body(body)
        request = self._client.build_request(scope["method"], url, headers=headers, content=content)
        has_begun = False
        try:
            reply = await self._client.send(request, stream=True)
            try:
                reply_headers = [(name.lower(), value) for name, value in reply.headers.raw]
                reply_headers = [
                    header for header in reply_headers if header[0] == b"content-length" or header[0] not in _CONNECTION
                ]
                copy.begin(reply)
                await send({"type": "http.response.start", "status": reply.status_code, "headers": reply_headers})
                has_begun = True
                async for part in reply.aiter_raw():
                    copy.feed(part)
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            finally:
                await reply.aclose()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        # Sending to a client that has left raises OSError.
        except OSError:
            copy.note_leave()
        except httpx.HTTPError as error:
            is_timeout = isinstance(error, (httpx.ReadTimeout, httpx.WriteTimeout))
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            reason = (
                f"it sent nothing for {self._timeout:g} s (raise --timeout if its replies take longer)"
                if is_timeout
                else reason
            )
            copy.finish, copy.is_cut = "error", has_begun
            copy.problem = f"the endpoint {'broke off its reply' if has_begun else 'did not answer'}: {reason}"
            if not has_begun:
                status, code = (504, "endpoint_timeout") if is_timeout else (502, "endpoint_unreachable")
                refused = Refused(copy.problem, status=status, code=code)
                await send_refusal(send, refused, _format_error("/v1/" + path, refused))

    def _digest_key(self, headers: Headers) -> str:
        """Return a session name derived from the client's key: equal keys give equal names in this process."""
        key = next((headers[name] for name in _KEYS if headers.get(name)), None)
        return "anonymous" if key is None else "key-" + hmac.new(self._salt, key, hashlib.sha256).hexdigest()[:12]


async def _run_function(is_long: bool, function: Callable[[], T]) -> T:
    """Call a function, in a thread if the call takes long."""
    return await asyncio.to_thread(function) if is_long else function()


def _add_token_id_request(body: bytes) -> bytes:
    """Add `return_token_ids` to a request's JSON body. A body that is no JSON object stays unchanged."""
    try:
        return json.dumps({**load_json(body), "return_token_ids": True}).encode()
    except (ValueError, TypeError, RecursionError):  # the endpoint reports the error
        return body


def _split_path(scope: Scope) -> tuple[str | None, str]:
    """Return (session, path) of a request's path: a path /s/NAME/PATH names the session NAME, any other names none
    (None)."""
    path = scope["raw_path"].decode("latin-1")  # the raw path: %2F is not a separator
    if _may_leave_folder(path):
        raise Refused(f"Not Found: {path}.", status=404)
    if not path.startswith("/s/"):
        return None, path
    name, _, remaining_path = path.removeprefix("/s/").partition("/")
    return _check_name(unquote(name)), "/" + remaining_path


def _may_leave_folder(path: str) -> bool:
    """Return True if a server that decodes the path, even repeatedly, could leave its folder."""
    decoded = path
    try:
        for _ in range(_MAX_DECODED):
            decoded = unquote(decoded, errors="strict")
    except UnicodeDecodeError:  # the bytes are no UTF-8, for example an overlong form of a dot
        return True
    if unquote(decoded) != decoded:
        return True
    parts = re.split(r"[/\\]", decoded)
    return _CONTROL.search(decoded) is not None or any(part.partition(";")[0] in (".", "..") for part in parts)


def _refuse_pages(scope: Scope) -> None:
    """Raise Refused for requests of web pages of other hosts (CSRF and DNS rebinding)."""
    if _list_foreign(scope, b"origin"):
        raise Refused("This proxy refuses requests of web pages from other machines.", status=403)
    server = scope.get("server")
    if server and is_loopback(server[0]) and (hosts := _list_foreign(scope, b"host")):
        raise Refused(f"The request's Host header {hosts[0]!r} is not an address of this proxy.", status=421)


def _list_foreign(scope: Scope, header: bytes) -> list[str]:
    """Return the values of a header that name another host.

    All headers of the name count, since a program may read any of them.
    """
    values = [value.decode("latin-1").strip() for name, value in scope["headers"] if name == header]
    return [value for value in values if value and not is_loopback(parse_header_host(value))]


def _read_name(headers: Headers, header: bytes) -> str | None:
    """Return the name in a header, or None without the header. Raises Refused for an invalid name."""
    value = headers.get(header)
    return None if value is None else _check_name(value.decode("utf-8", "replace").strip())


def _check_name(name: str) -> str:
    """Return the name of a session or agent. Raises Refused if it is empty, too long or has control characters."""
    if not _NAME.fullmatch(name):
        raise Refused("The name of a session or agent must have 1 to 128 printable characters.", code="invalid_value")
    return name


def _format_error(path: str, refused: Refused) -> dict[str, Any]:
    """Return a refusal as JSON in the protocol of the requested path: Anthropic's for /v1/messages, else OpenAI's."""
    return anthropic.error_body(refused) if path.startswith("/v1/messages") else chat.error_body(refused)


async def _cut_body(body: bytes) -> AsyncIterator[bytes]:
    """Yield a body in pieces, to answer other requests in between: 60 MiB at once take 0.1 s."""
    view = memoryview(body)
    for start in range(0, len(body), _PIECE_BYTES):
        yield bytes(view[start : start + _PIECE_BYTES])


async def _wait_for_leave(receive: Receive) -> None:
    """Return once the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
