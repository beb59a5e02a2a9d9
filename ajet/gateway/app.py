"""App: the routes, the same for sockets and for the in-process transport.

Invariant: every request is answered, also one to nowhere and one that meets a mistake of ours, with a status, an id
that clients show in their errors (and the log has), and an error in the shape that its client reads.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping

from loguru import logger
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from ajet.gateway.callers import PATH_KEY, grant_of
from ajet.gateway.dialects.anthropic import AnthropicDialect, CountTokensDialect
from ajet.gateway.dialects.chat import ChatDialect
from ajet.gateway.dialects.completions import CompletionsDialect
from ajet.gateway.dialects.contract import Dialect
from ajet.gateway.dialects.responses import InputTokensDialect, ResponsesDialect, response_routes
from ajet.gateway.exchange import REQUEST_ID, Endpoint, cut_off
from ajet.gateway.limits import after_wrong_key, peer_of, welcome
from ajet.gateway.models import describe_model, error_body, list_models
from ajet.gateway.serving import Serving
from ajet.gateway.session import Session
from ajet.gateway.turn import Refused


def build_app(serving: Serving, *, opens_later: bool = False) -> App:
    """The gateway's routes. `opens_later`: there will be more, and until then one that is not there is there soon."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(request: Request) -> Response:
        session = session_of(serving, request)
        return JSONResponse(list_models(request, serving, session))

    async def model(request: Request) -> Response:
        session = session_of(serving, request)
        name = request.path_params["name"]
        if name not in (session.models or [session.model_name]):
            raise Refused("The model does not exist.", status=404, code="model_not_found", param="model")
        return JSONResponse(describe_model(request, serving, name))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        if error.status == 401:
            await after_wrong_key(request.scope)
        return JSONResponse(error_body(request, error), status_code=error.status)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and app.opens_later:  # who was served before it was started again asks once more
            soon = Refused("The server is being started.", status=503, code="starting")
            return JSONResponse(error_body(request, soon), status_code=503, headers={"retry-after": "1"})
        told = Refused(f"{error.detail}: {request.method} {request.url.path}", status=error.status_code)
        headers = {"allow": ", ".join(_allowed_methods(app.routes, request.scope))} if told.status == 405 else None
        return JSONResponse(error_body(request, told), status_code=error.status_code, headers=headers)

    async def failed(request: Request, error: Exception) -> Response:
        logger.opt(exception=error).error(
            "the gateway failed on {} {} ({})", request.method, request.url.path, request.scope["state"][REQUEST_ID]
        )
        told = Refused("internal error", status=500, code="internal_error")
        return JSONResponse(error_body(request, told), status_code=told.status)

    renderer = serving.renderer
    decode = renderer.decode if renderer is not None else None
    room = min(serving.max_model_len, getattr(serving.engine, "max_model_len", serving.max_model_len))
    dialects: tuple[Dialect, ...] = (
        ChatDialect(decode),
        CompletionsDialect(decode),
        ResponsesDialect(decode),
        InputTokensDialect(decode),
        AnthropicDialect(room),
        CountTokensDialect(room),
    )
    endpoints = {dialect.path: Endpoint(serving.keys, dialect) for dialect in dialects}
    others = Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            *response_routes(lambda request: session_of(serving, request).kept),
            *[Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()],
        ],
        exception_handlers={Refused: refused, HTTPException: http_error, Exception: failed},
    )
    others.router.redirect_slashes = False  # a redirect would lose the key of a path
    app = App(endpoints, others, failed, opens_later=opens_later)
    return app


class App:
    """Sends requests to where they belong: those of the dialects straight to them, the rest to `others`. A path
    `/s/KEY/…` is that of a client which can set no key. `failed` answers where a mistake of ours shows."""

    def __init__(
        self,
        endpoints: Mapping[str, ASGIApp],
        others: Starlette,
        failed: ExceptionHandler,
        *,
        opens_later: bool = False,
    ) -> None:
        self._endpoints, self._others = endpoints, others
        self.opens_later = opens_later
        """Whether there are routes to come."""
        self._guarded = ServerErrorMiddleware(self._dispatch, handler=failed)

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes that are served, those of the dialects included."""
        return self._others.routes

    def add_routes(self, routes: Iterable[BaseRoute]) -> None:
        """Serve these too: they are all."""
        self._others.router.routes.extend(routes)
        self.opens_later = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = "req_" + secrets.token_hex(12)
        scope.setdefault("state", {})[REQUEST_ID] = request_id
        ids = [(name, request_id.encode()) for name in (b"request-id", b"x-request-id")]  # Anthropic's and OpenAI's

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *ids]}
            await send(message)

        try:
            await self._guarded(scope, receive, send_with_id)
        except asyncio.CancelledError:
            if peer_of(scope) is None:
                raise
            await cut_off(scope, send_with_id, lambda ended: error_body(Request(scope), ended))

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith("/s/"):
            secret, _, rest = path[3:].partition("/")
            path = "/" + rest
            scope = {**scope, "path": path, "raw_path": path.encode(), PATH_KEY: secret}
        if path.startswith("/v1/v1/"):  # of a client that adds /v1 to an address that ends so
            path = path[3:]
            scope = {**scope, "path": path, "raw_path": path.encode()}
        place = self._endpoints.get(path) if scope.get("method") == "POST" else None
        await (place or self._others)(scope, receive, send)


def _allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """The methods of all routes with this path: HTTP requires a 405 to name them."""
    found = [
        route.methods or () for route in routes if isinstance(route, Route) and route.matches(scope)[0] != Match.NONE
    ]
    return sorted({method for methods in found for method in methods})


def session_of(serving: Serving, request: Request) -> Session:
    """The session whose key a request bears. Raises Refused."""
    session = grant_of(serving.keys, request.scope, dict(request.scope["headers"]))[1].session
    welcome(request.scope)
    return session
