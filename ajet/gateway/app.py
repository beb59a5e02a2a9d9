"""App: the ASGI application of a gateway, the same for sockets and for the in-process transport.

Invariant: every request is answered, also one to an unknown path and one that meets an error of ours, with a status, an
id that clients show in their errors (and the log has), and an error in the shape that its client parses.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from functools import partial

from loguru import logger
from starlette.applications import Starlette
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from ajet.gateway.context import GatewayContext
from ajet.gateway.dialects.anthropic import AnthropicDialect, CountTokensDialect
from ajet.gateway.dialects.chat import ChatDialect
from ajet.gateway.dialects.completions import CompletionsDialect
from ajet.gateway.dialects.contract import Dialect
from ajet.gateway.dialects.responses import InputTokensDialect, ResponsesDialect
from ajet.gateway.exchange import REQUEST_ID, RequestExchange, add_request_id, end_by_shutdown, send_refusal
from ajet.gateway.keys import PATH_KEY, Keys
from ajet.gateway.limits import PEER
from ajet.gateway.request import Refused
from ajet.gateway.routes import answer_failure, build_routes, format_error
from ajet.gateway.session import Session
from ajet.gateway.stream_pacing import StreamPacing

_INTERNAL_ERROR = Refused("internal error", status=500, code="internal_error")


def build_app(context: GatewayContext, *, opens_later: bool = False) -> App:
    """Return the application of a gateway. `opens_later`: see `App`."""
    decode = context.renderer.decode if context.renderer is not None else None
    max_model_len = min(context.max_model_len, getattr(context.engine, "max_model_len", context.max_model_len))
    dialects: tuple[Dialect, ...] = (
        ChatDialect(decode),
        CompletionsDialect(decode),
        ResponsesDialect(decode),
        InputTokensDialect(decode),
        AnthropicDialect(max_model_len),
        CountTokensDialect(max_model_len),
    )
    by_path = {dialect.path: dialect for dialect in dialects}
    others = build_routes(context, by_path, lambda: app.opens_later)
    app = App(by_path, others, context.keys, context.pacing, opens_later=opens_later)
    return app


class App:
    """Sends requests for replies to their dialects, and all others to Starlette's routes. A path `/s/KEY/…` is that of
    a client that cannot send a key otherwise."""

    def __init__(
        self,
        dialects: Mapping[str, Dialect],
        others: Starlette,
        keys: Keys[Session],
        pacing: StreamPacing,
        *,
        opens_later: bool = False,
    ) -> None:
        """`opens_later`: more routes are added once the gateway serves; see `add_routes`."""
        self._dialects, self._others, self._keys, self._pacing = dialects, others, keys, pacing
        self.opens_later = opens_later
        self._guarded = ServerErrorMiddleware(others, handler=answer_failure)

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes, those of the dialects included."""
        return self._others.routes

    def add_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Serve these routes too; no others follow."""
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
        if dialect is None:
            await self._serve_other(scope, receive, send, request_id)
            return
        exchange = RequestExchange(self._keys, self._pacing, dialect, scope, receive, send, request_id)
        try:
            await exchange.run()
        except asyncio.CancelledError:
            if state.get(PEER) is None:
                raise
            await end_by_shutdown(scope, exchange.send_with_id, partial(format_error, Request(scope)))
        except Exception as error:
            logger.opt(exception=error).error("the gateway failed on {} {} ({})", scope["method"], path, request_id)
            if not exchange.has_started:
                body = format_error(Request(scope), _INTERNAL_ERROR)
                await send_refusal(exchange.send_with_id, _INTERNAL_ERROR, body)
            raise

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        """Serve a request that is not for replies."""

        async def send_with_id(message: Message) -> None:
            await send(add_request_id(message, request_id))

        try:
            await self._guarded(scope, receive, send_with_id)
        except asyncio.CancelledError:
            if scope["state"].get(PEER) is None:
                raise
            await end_by_shutdown(scope, send_with_id, partial(format_error, Request(scope)))


def _resolve_path(scope: Scope, path: str) -> Scope:
    """Return the scope without the key in its path, and without a /v1 that a client added to an address with one."""
    scope = dict(scope)
    if path.startswith("/s/"):
        scope[PATH_KEY], _, rest = path[3:].partition("/")
        path = "/" + rest
    if path.startswith("/v1/v1/"):
        path = path[3:]
    scope["path"], scope["raw_path"] = path, path.encode()
    return scope
