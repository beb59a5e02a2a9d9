"""App: the ASGI application of a gateway, the same for sockets and for the in-process transport.

Invariant: every request gets an answer, also for an unknown path or after an internal error. The answer has a status, a
request id (shown by clients in their errors and written to the log) and an error in the client's own shape.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from ajet.gateway.asgi import REQUEST_ID, add_request_id, end_by_shutdown
from ajet.gateway.dialects.contract import Dialect
from ajet.gateway.exchange import RequestExchange
from ajet.gateway.keys import MAX_NAME, Grant, Keys
from ajet.gateway.limits import PEER, after_wrong_key
from ajet.gateway.request import Refused
from ajet.gateway.session import Session
from ajet.gateway.stream_pacing import StreamPacing

PATH_KEY = "ajet.key"
"""Scope key: the key found in the URL path (`/s/KEY/v1/…`)."""


class App:
    """Sends requests for replies to their dialects, and all others to Starlette's routes.

    A path `/s/KEY/…` serves clients that cannot send a key in a header.
    """

    def __init__(
        self,
        dialects: Mapping[str, Dialect],
        others: Starlette,
        keys: Keys[Session],
        pacing: StreamPacing,
        *,
        format_error: Callable[[Request, Refused], Mapping[str, Any]],
        answer_failure: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        """Build the application of one gateway.

        Args:
            dialects: Path -> the dialect of its requests.
            others: Serves all other requests.
            keys: Keys of the gateway's sessions.
            pacing: Counts the clients of the gateway.
            format_error: Builds the body of an error outside of any dialect.
            answer_failure: Logs an error of ours and answers it.
        """
        self._dialects, self._others, self._keys, self._pacing = dialects, others, keys, pacing
        self._format_error, self._answer_failure = format_error, answer_failure
        self.opens_later = False
        """True if more routes will be added while the gateway serves. An unknown path then gets 503 instead of 404."""
        self._guarded = ServerErrorMiddleware(others, handler=answer_failure)

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes, including the routes of the dialects."""
        return self._others.routes

    def add_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Serve further routes. No routes can follow."""
        self._others.router.routes.extend(routes)
        self.opens_later = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = "req_" + secrets.token_hex(12)
        state = scope.setdefault("state", {})
        state[REQUEST_ID] = request_id
        path = scope.get("path", "")
        if path.startswith(("/s/", "/v1/v1/")):
            scope = _resolve_path(scope, path)
            path = scope["path"]
        dialect = self._dialects.get(path) if scope.get("method") == "POST" else None
        try:
            if dialect is None:
                await self._guarded(scope, receive, partial(_send_with_id, send, request_id))
            else:
                await self._serve_dialect(dialect, scope, receive, send, request_id)
        except asyncio.CancelledError:
            if state.get(PEER) is None:
                raise
            build_error = partial(self._format_error, Request(scope))  # cancelled by the shutdown of the server
            await end_by_shutdown(scope, partial(_send_with_id, send, request_id), build_error)

    async def _serve_dialect(
        self, dialect: Dialect, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        """Serve a request for replies, or refuse a request without a valid key."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        found: tuple[str, Grant[Session]] | Refused
        try:
            found = find_grant(self._keys, scope, headers)
        except Refused as refused:
            found = refused
        exchange = RequestExchange(dialect, self._pacing, scope, receive, send, headers, request_id)
        try:
            if isinstance(found, Refused):
                if found.status == 401:
                    await after_wrong_key(scope)
                await exchange.refuse(found)
            else:
                await exchange.run(*found)
        except Exception as error:
            answer = await self._answer_failure(Request(scope), error)
            if not exchange.has_started:
                await answer(scope, receive, partial(_send_with_id, send, request_id))
            raise


async def _send_with_id(send: Send, request_id: str, message: Message) -> None:
    await send(add_request_id(message, request_id))


def find_grant(
    keys: Keys[Session], scope: Mapping[str, Any], headers: Mapping[bytes, bytes]
) -> tuple[str, Grant[Session]]:
    """Return the key of a request and its grant. Raises Refused if no key is valid.

    Keys are tried in this order: path, `Authorization: Bearer`, `x-api-key`, `api-key`.
    """
    offered = [scope[PATH_KEY]] if PATH_KEY in scope else []
    kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        offered.append(secret.strip())
    offered += [headers[name].decode("latin-1") for name in (b"x-api-key", b"api-key") if name in headers]
    for key in offered:
        grant = keys.grants.get(key)
        if grant is not None:
            return key, grant
    client = headers.get(b"user-agent", b"").decode("latin-1")[:MAX_NAME]
    raise keys.refuse_unknown(offered[0] if offered else None, client=client)


def _resolve_path(scope: Scope, path: str) -> Scope:
    """Return the scope without the key in the path, and without a doubled /v1 added by the client."""
    scope = dict(scope)
    if path.startswith("/s/"):
        scope[PATH_KEY], _, rest = path[3:].partition("/")
        path = "/" + rest
    if path.startswith("/v1/v1/"):
        path = path[3:]
    scope["path"], scope["raw_path"] = path, path.encode()
    return scope
