"""App: the ASGI application of a gateway, the same for sockets and for the in-process transport.

Invariant: every request gets an answer, also for an unknown path or after an internal error. The answer has a status, a
request id (shown by clients in their errors and written to the log) and an error in the client's own shape.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from loguru import logger
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

from ajet.gateway.asgi import ADDRESS_FIELDS, REQUEST_ID, add_request_id, end_by_shutdown
from ajet.gateway.context import GatewayContext
from ajet.gateway.dialects import anthropic, chat, gemini
from ajet.gateway.dialects.anthropic import AnthropicDialect, CountTokensDialect
from ajet.gateway.dialects.chat import ChatDialect
from ajet.gateway.dialects.completions import CompletionsDialect
from ajet.gateway.dialects.contract import Dialect
from ajet.gateway.dialects.responses import InputTokensDialect, ResponsesDialect, response_routes
from ajet.gateway.exchange import RequestExchange
from ajet.gateway.keys import MAX_NAME, Grant, Keys
from ajet.gateway.limits import PEER, after_wrong_key, welcome
from ajet.gateway.request import Refused
from ajet.gateway.session import Session
from ajet.gateway.stream_pacing import StreamPacing

PATH_KEY = "ajet.key"
"""Scope key: the key found in the URL path (`/s/KEY/v1/…`)."""
_KEY_HEADERS = (b"x-api-key", b"api-key", b"x-goog-api-key")
_GEMINI_ADDRESS = re.compile(r"/v1(beta|alpha)?/models/([^:]+):(\w+)")
_GEMINI_PATH = "/v1beta/models/{model}:"


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
            dialects: Path -> the dialect (client protocol) of its requests.
            others: Serves all other requests.
            keys: Keys of the gateway's sessions.
            pacing: Counts the clients of the gateway.
            format_error: Builds the body of an error outside of any dialect.
            answer_failure: Logs an internal error of ajet and answers it with a status 500.
        """
        self._dialects = dialects
        self._router_app = others
        self._keys = keys
        self._pacing = pacing
        self._format_error, self._answer_failure = format_error, answer_failure
        self.opens_later = False
        """True if more routes will be added while the gateway serves. An unknown path then gets 503 instead of 404."""
        self._other_app = ServerErrorMiddleware(others, handler=answer_failure)

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes, including the routes of the dialects."""
        return self._router_app.routes

    def add_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Serve further routes. After this call an unknown path gets 404, because no routes can follow."""
        self._router_app.router.routes.extend(routes)
        self.opens_later = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request: by its dialect if it asks for a reply, otherwise by Starlette's routes."""
        request_id = "req_" + secrets.token_hex(12)
        state = scope.setdefault("state", {})
        state[REQUEST_ID] = request_id
        path = scope.get("path", "")
        if path.startswith(("/s/", "/v1/v1/", "/v1/v1beta/")):
            scope = _resolve_path(scope, path)
            path = scope["path"]
        if ":" in path and (address := _GEMINI_ADDRESS.fullmatch(path)):
            alt = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("alt", [None])[0]
            scope = {**scope, ADDRESS_FIELDS: {"model": address[2], "alt": alt}}
            path = _GEMINI_PATH + address[3]
        dialect = self._dialects.get(path) if scope.get("method") == "POST" else None
        try:
            if dialect is None:
                await self._other_app(scope, receive, partial(_send_with_id, send, request_id))
            else:
                await self._serve_dialect(dialect, scope, receive, send, request_id)
        except asyncio.CancelledError:
            # In-process requests are cancelled by their own client. Over a socket only the shutdown cancels.
            if state.get(PEER) is None:
                raise
            build_error = partial(self._format_error, Request(scope))  # cancelled by the shutdown of the server
            await end_by_shutdown(scope, partial(_send_with_id, send, request_id), build_error)

    async def _serve_dialect(
        self, dialect: Dialect, scope: Scope, receive: Receive, send: Send, request_id: str
    ) -> None:
        """Serve a request for replies, or refuse a request without a valid key."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        granted: tuple[str, Grant[Session]] | Refused
        try:
            granted = find_grant(self._keys, scope, headers)
        except Refused as refused:
            granted = refused
        exchange = RequestExchange(dialect, self._pacing, scope, receive, send, headers, request_id)
        try:
            if isinstance(granted, Refused):
                if granted.status == 401:
                    await after_wrong_key(scope)
                await exchange.refuse(granted)
            else:
                await exchange.run(*granted)
        except Exception as error:
            answer = await self._answer_failure(Request(scope), error)
            if not exchange.has_started:
                await answer(scope, receive, partial(_send_with_id, send, request_id))
            raise


async def _send_with_id(send: Send, request_id: str, message: Message) -> None:
    """Send an ASGI message. The head of an answer gets the request's id."""
    await send(add_request_id(message, request_id))


def find_grant(
    keys: Keys[Session], scope: Mapping[str, Any], headers: Mapping[bytes, bytes]
) -> tuple[str, Grant[Session]]:
    """Return the key of a request and what it grants: session, agent and target. Raises Refused if no key is valid.

    Keys are tried in this order: path, `Authorization: Bearer`, `x-api-key`, `api-key`, `x-goog-api-key`, `?key=`.
    """
    offered = [scope[PATH_KEY]] if PATH_KEY in scope else []
    kind, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        offered.append(secret.strip())
    offered += [headers[name].decode("latin-1") for name in _KEY_HEADERS if name in headers]
    if b"key=" in (query := scope.get("query_string", b"")):
        offered += parse_qs(query.decode("latin-1")).get("key", [])
    for key in offered:
        grant = keys.grants.get(key)
        if grant is not None:
            return key, grant
    client = headers.get(b"user-agent", b"").decode("latin-1")[:MAX_NAME]
    raise keys.refuse_unknown(offered[0] if offered else None, client=client)


def _resolve_path(scope: Scope, path: str) -> Scope:
    """Return the scope without the key in the path (`/s/KEY`), and without a second `/v1` added by the client."""
    scope = dict(scope)
    if path.startswith("/s/"):
        scope[PATH_KEY], _, remaining_path = path[3:].partition("/")
        path = "/" + remaining_path
    if path.startswith(("/v1/v1/", "/v1/v1beta/")):
        path = path[3:]
    scope["path"], scope["raw_path"] = path, path.encode()
    return scope


# The application of a gateway: its dialects, and other routes (health, models, stored responses).
# Invariant: a client that sends `anthropic-version` gets answers in Anthropic's form, a client that sends
# `x-goog-api-key` or calls a method of a model in Google's, any other client in OpenAI's.
def build_app(context: GatewayContext, *, opens_later: bool = False) -> App:
    """Return the application of a gateway.

    Args:
        opens_later: True if routes are added later. An unknown path gets 503 until then.
    """
    decode = context.renderer.decode if context.renderer is not None else None
    max_model_len = min(context.max_model_len, getattr(context.engine, "max_model_len", context.max_model_len))
    dialects: tuple[Dialect, ...] = (
        ChatDialect(decode),
        CompletionsDialect(decode),
        ResponsesDialect(decode),
        InputTokensDialect(decode),
        AnthropicDialect(max_model_len),
        CountTokensDialect(max_model_len),
        gemini.GeminiDialect(decode),
        gemini.GeminiStreamDialect(decode),
        gemini.GeminiCountDialect(decode),
    )
    by_path = {dialect.path: dialect for dialect in dialects}
    other_app = _build_others(context, by_path, lambda: app.opens_later)
    app = App(
        by_path, other_app, context.keys, context.pacing, format_error=format_error, answer_failure=answer_failure
    )
    app.opens_later = opens_later
    return app


def _build_others(context: GatewayContext, paths: Iterable[str], opens_later: Callable[[], bool]) -> Starlette:
    """Return the application of all routes that no dialect serves: health, models, stored responses.

    Args:
        context: The context of the gateway.
        paths: Paths of the dialects, served by the App and listed here.
        opens_later: Returns True while routes may still be added; an unknown path then gets 503.
    """

    async def get_health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def get_models(request: Request) -> Response:
        """Answer with the models of the key's session, in the client's form."""
        session = find_session(context, request)
        models = [_describe_model(request, context, name) for name in session.models or [session.model_name]]
        if _is_gemini(request):
            return JSONResponse({"models": models})
        if _is_anthropic(request):
            return JSONResponse(anthropic.model_page(models))
        return JSONResponse({"object": "list", "data": models})

    async def get_model(request: Request) -> Response:
        """Answer with the description of one model. Raises Refused for an unknown name."""
        session = find_session(context, request)
        name = request.path_params["name"]
        if name not in (session.models or [session.model_name]):
            raise Refused("The model does not exist.", status=404, code="model_not_found", param="model")
        return JSONResponse(_describe_model(request, context, name))

    async def serve_dialect(request: Request) -> Response:
        # The App serves the POST requests of dialects. This route makes a GET of such a path a 405; only a path that
        # ends in a newline comes here, because Starlette's pattern matches it.
        raise HTTPException(404)

    async def answer_http_error(request: Request, error: Exception) -> Response:
        """Answer an unknown path or method with an error in the client's form."""
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and opens_later():  # a client of the server before a restart retries
            not_ready = Refused("The server is starting. Retry later.", status=503, code="starting")
            return JSONResponse(format_error(request, not_ready), status_code=503, headers={"retry-after": "1"})
        refused = Refused(f"{error.detail}: {request.method} {request.url.path}", status=error.status_code)
        headers: Mapping[str, str] | None = None
        if refused.status == 405:
            headers = {"allow": ", ".join(_list_methods(other_app.routes, request.scope))}
        return JSONResponse(format_error(request, refused), status_code=error.status_code, headers=headers)

    other_app = Starlette(
        routes=[
            Route("/health", get_health),
            Route("/v1/models", get_models),
            Route("/v1/models/{name:path}", get_model),
            Route("/v1beta/models", get_models),
            Route("/v1beta/models/{name:path}", get_model),
            *response_routes(lambda request: find_session(context, request).dialect_state),
            *[Route(path, serve_dialect, methods=["POST"]) for path in paths],
        ],
        exception_handlers={Refused: _answer_refusal, HTTPException: answer_http_error, Exception: answer_failure},
    )
    other_app.router.redirect_slashes = False  # a redirect would lose the key in the path
    return other_app


async def answer_failure(request: Request, error: Exception) -> Response:
    """Log an internal error of ajet with its traceback, and return an answer with status 500 that reveals nothing of
    it.
    """
    request_id = request.scope["state"][REQUEST_ID]
    logger.opt(exception=error).error(
        "internal error of the gateway at {} {} (request id {})", request.method, request.url.path, request_id
    )
    return JSONResponse(
        format_error(request, Refused("internal error", status=500, code="internal_error")), status_code=500
    )


def format_error(request: Request, refused: Refused) -> dict[str, Any]:
    """Return the body of an error outside of any dialect, in the client's form: Google's, Anthropic's or OpenAI's."""
    if _is_gemini(request):
        return gemini.error_body(refused)
    if _is_anthropic(request):
        return anthropic.error_body(refused, request.scope["state"][REQUEST_ID])
    return chat.error_body(refused)


def find_session(context: GatewayContext, request: Request) -> Session:
    """Return the session of a request's key, and note the valid key on the connection. Raises Refused."""
    session: Session = find_grant(context.keys, request.scope, dict(request.scope["headers"]))[1].session
    welcome(request.scope)
    return session


async def _answer_refusal(request: Request, error: Exception) -> Response:
    """Answer a Refused of a route in the client's form. The answer to a wrong key is delayed, against guessing."""
    assert isinstance(error, Refused)
    if error.status == 401:
        await after_wrong_key(request.scope)
    return JSONResponse(format_error(request, error), status_code=error.status)


def _describe_model(request: Request, context: GatewayContext, name: str) -> dict[str, Any]:
    """Return the description of a model in the client's form: Google's, Anthropic's or OpenAI's."""
    if _is_gemini(request):
        return gemini.model_info(name, context.max_model_len, context.max_response_tokens)
    if _is_anthropic(request):
        return anthropic.model_info(name, context.max_model_len, context.max_response_tokens)
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}


def _is_gemini(request: Request) -> bool:
    """Return True if the client speaks Google's protocol: by the request's address, or by Google's key header."""
    return ADDRESS_FIELDS in request.scope or b"x-goog-api-key" in dict(request.scope["headers"])


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _list_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods of all routes with this path, for the `allow` header of a 405."""
    methods_by_route = [
        route.methods or () for route in routes if isinstance(route, Route) and route.matches(scope)[0] != Match.NONE
    ]
    return sorted({method for methods in methods_by_route for method in methods})
