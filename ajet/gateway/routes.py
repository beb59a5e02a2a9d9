"""The application of a gateway: its dialects, and other routes (health, models, stored responses).

Invariant: a client that sends `anthropic-version` gets answers in Anthropic's form, any other client in OpenAI's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loguru import logger
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from ajet.gateway.app import App, find_grant
from ajet.gateway.asgi import REQUEST_ID
from ajet.gateway.context import GatewayContext
from ajet.gateway.dialects import anthropic, chat
from ajet.gateway.dialects.anthropic import AnthropicDialect, CountTokensDialect
from ajet.gateway.dialects.chat import ChatDialect
from ajet.gateway.dialects.completions import CompletionsDialect
from ajet.gateway.dialects.contract import Dialect
from ajet.gateway.dialects.responses import InputTokensDialect, ResponsesDialect, response_routes
from ajet.gateway.limits import after_wrong_key, welcome
from ajet.gateway.request import Refused
from ajet.gateway.session import Session


def build_app(context: GatewayContext, *, opens_later: bool = False) -> App:
    """Return the application of a gateway. `opens_later` sets `App.opens_later`."""
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
    others = _build_others(context, by_path, lambda: app.opens_later)
    app = App(by_path, others, context.keys, context.pacing, format_error=format_error, answer_failure=answer_failure)
    app.opens_later = opens_later
    return app


def _build_others(context: GatewayContext, paths: Iterable[str], opens_later: Callable[[], bool]) -> Starlette:
    """Return the application of all other routes.

    Args:
        context: The context of the gateway.
        paths: Paths of the dialects, served by the App and listed here.
        opens_later: Returns True while routes may still be added; an unknown path then gets 503.
    """

    async def get_health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def get_models(request: Request) -> Response:
        session = find_session(context, request)
        models = [_describe_model(request, context, name) for name in session.models or [session.model_name]]
        if _is_anthropic(request):
            return JSONResponse(anthropic.model_page(models))
        return JSONResponse({"object": "list", "data": models})

    async def get_model(request: Request) -> Response:
        session = find_session(context, request)
        name = request.path_params["name"]
        if name not in (session.models or [session.model_name]):
            raise Refused("The model does not exist.", status=404, code="model_not_found", param="model")
        return JSONResponse(_describe_model(request, context, name))

    async def serve_dialect(request: Request) -> Response:
        raise HTTPException(404)  # only paths ending in a newline come here; the route is needed for the 405

    async def answer_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404 and opens_later():  # a client of the server before a restart retries
            soon = Refused("The server is starting. Retry later.", status=503, code="starting")
            return JSONResponse(format_error(request, soon), status_code=503, headers={"retry-after": "1"})
        refused = Refused(f"{error.detail}: {request.method} {request.url.path}", status=error.status_code)
        headers: Mapping[str, str] | None = None
        if refused.status == 405:
            headers = {"allow": ", ".join(_list_methods(others.routes, request.scope))}
        return JSONResponse(format_error(request, refused), status_code=error.status_code, headers=headers)

    others = Starlette(
        routes=[
            Route("/health", get_health),
            Route("/v1/models", get_models),
            Route("/v1/models/{name:path}", get_model),
            *response_routes(lambda request: find_session(context, request).dialect_state),
            *[Route(path, serve_dialect, methods=["POST"]) for path in paths],
        ],
        exception_handlers={Refused: _answer_refusal, HTTPException: answer_http_error, Exception: answer_failure},
    )
    others.router.redirect_slashes = False  # a redirect would lose the key in the path
    return others


async def answer_failure(request: Request, error: Exception) -> Response:
    """Log an internal error and answer with 500."""
    request_id = request.scope["state"][REQUEST_ID]
    logger.opt(exception=error).error(
        "internal error of the gateway at {} {} (request id {})", request.method, request.url.path, request_id
    )
    return JSONResponse(
        format_error(request, Refused("internal error", status=500, code="internal_error")), status_code=500
    )


def format_error(request: Request, refused: Refused) -> dict[str, Any]:
    """Return the body of an error outside of any dialect."""
    if _is_anthropic(request):
        return anthropic.error_body(refused, request.scope["state"][REQUEST_ID])
    return chat.error_body(refused)


def find_session(context: GatewayContext, request: Request) -> Session:
    """Return the session of a request's key. Raises Refused."""
    session: Session = find_grant(context.keys, request.scope, dict(request.scope["headers"]))[1].session
    welcome(request.scope)
    return session


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    if error.status == 401:
        await after_wrong_key(request.scope)
    return JSONResponse(format_error(request, error), status_code=error.status)


def _describe_model(request: Request, context: GatewayContext, name: str) -> dict[str, Any]:
    if _is_anthropic(request):
        return anthropic.model_info(name, context.max_model_len, context.max_response_tokens)
    return {"id": name, "object": "model", "created": 0, "owned_by": "ajet"}


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _list_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods of all routes with this path, for the `allow` header of a 405."""
    found = [
        route.methods or () for route in routes if isinstance(route, Route) and route.matches(scope)[0] != Match.NONE
    ]
    return sorted({method for methods in found for method in methods})
