"""App: the ASGI side, the same for sockets and for the in-process transport.

Invariant: whatever a client sends or stops doing, the gateway answers with a status and an error in the client's
dialect or frees what the request held; a client that leaves aborts its calls, a slow one holds up nobody else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from loguru import logger
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ajet.gateway.dialects.anthropic import AnthropicDialect, CountTokensDialect
from ajet.gateway.dialects.chat import ChatDialect
from ajet.gateway.dialects.completions import CompletionsDialect
from ajet.gateway.dialects.contract import Asked, Caller, Dialect
from ajet.gateway.models import describe_model, error_body, list_models
from ajet.gateway.turn import Piece, Refused, Turn

if TYPE_CHECKING:
    from ajet.gateway.keys import Keys
    from ajet.gateway.server import Gateway
    from ajet.gateway.session import Grant

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MAX_BODY = 64 << 20
"""Bytes of a request's body."""
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


def build_app(gateway: Gateway) -> Starlette:
    """The gateway's routes."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(request: Request) -> Response:
        session = gateway.keys.look_up(_secret(request.scope)).session
        return JSONResponse(list_models(request, gateway, session))

    async def model(request: Request) -> Response:
        session = gateway.keys.look_up(_secret(request.scope)).session
        if request.path_params["name"] != session.model_name:
            raise Refused("The model does not exist.", status=404, code="model_not_found", param="model")
        return JSONResponse(describe_model(request, gateway, session))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return JSONResponse(error_body(request, error), status_code=error.status)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = Refused(f"{error.detail}: {request.method} {request.url.path}", status=error.status_code)
        return JSONResponse(error_body(request, told), status_code=error.status_code)

    async def failed(request: Request, error: Exception) -> Response:
        logger.opt(exception=error).error("the gateway failed on {} {}", request.method, request.url.path)
        told = Refused("internal error", status=500, code="internal_error")
        return JSONResponse(error_body(request, told), status_code=told.status)

    renderer = gateway.renderer
    decode = renderer.decode if renderer is not None else None
    room = min(gateway.max_model_len, getattr(gateway.engine, "max_model_len", gateway.max_model_len))
    dialects: tuple[Dialect, ...] = (
        ChatDialect(decode),
        CompletionsDialect(decode),
        AnthropicDialect(room),
        CountTokensDialect(room),
    )
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            *[Route(dialect.path, _Endpoint(gateway.keys, dialect), methods=["POST"]) for dialect in dialects],
        ],
        exception_handlers={Refused: refused, HTTPException: http_error, Exception: failed},
    )


def _secret(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, secret = value.decode("latin-1").partition(" ")
            return secret.strip() if kind.lower() == "bearer" else None
        if name in (b"x-api-key", b"api-key"):
            return value.decode("latin-1")
    return None


class _Endpoint:
    """One dialect's route."""

    def __init__(self, keys: Keys, dialect: Dialect) -> None:
        self._keys, self._dialect = keys, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            grant = self._keys.look_up(_secret(scope))
            body = await _body(scope, receive)
            if body is None:
                return
            caller = Caller(grant.agent, grant.target, grant.debug_model, grant.session.kept)
            asked = self._dialect.read(_object(body), caller)
            if asked.count is not None:
                await _answer(send, 200, asked.count(grant.session.count(asked.turns[0])))
                return
        except Refused as refused:
            await self._refuse(send, refused)
            return
        except RecursionError:
            await self._refuse(send, Refused("The request is nested too deeply.", code="invalid_json"))
            return
        exchange = _Exchange(self._dialect, grant, asked, send)
        await exchange.run(receive)

    async def _refuse(self, send: Send, refused: Refused) -> None:
        await _answer(send, refused.status, self._dialect.error(refused))


class _Exchange:
    """One request whose turns run, and its client, who may leave."""

    def __init__(self, dialect: Dialect, grant: Grant, asked: Asked, send: Send) -> None:
        self._dialect, self._grant, self._asked, self._send = dialect, grant, asked, send
        self._news: asyncio.Queue[tuple[int, Piece | Turn] | Refused | None] = asyncio.Queue()

    async def run(self, receive: Receive) -> None:
        work = asyncio.create_task(self._turns())
        watch = asyncio.create_task(_disconnected(receive))
        watch.add_done_callback(lambda _: work.cancel())
        try:
            if self._asked.stream:
                work.add_done_callback(lambda _: self._news.put_nowait(None))
                await self._write_events(work)
            else:
                await self._write_whole(work)
        except OSError:
            logger.debug("a client left before its reply was sent")
        finally:
            watch.cancel()
            work.cancel()
            await asyncio.wait([work])

    async def _turns(self) -> list[Turn]:
        session, requests = self._grant.session, self._asked.turns
        if not self._asked.stream and len(requests) == 1:
            return [await session.turn(requests[0])]
        running = [asyncio.create_task(self._turn(choice)) for choice in range(len(requests))]
        try:
            return list(await asyncio.gather(*running))
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    async def _turn(self, choice: int) -> Turn:
        session, request = self._grant.session, self._asked.turns[choice]
        if not self._asked.stream:
            return await session.turn(request)
        turn = await session.turn(request, lambda piece: self._news.put_nowait((choice, piece)))
        self._news.put_nowait((choice, turn))
        return turn

    async def _write_whole(self, work: asyncio.Task[list[Turn]]) -> None:
        await asyncio.wait([work])
        if work.cancelled():
            return
        try:
            turns = work.result()
        except Refused as refused:
            await _answer(self._send, refused.status, self._dialect.error(refused))
            return
        await _answer(self._send, 200, self._dialect.reply(self._asked, turns))

    async def _write_events(self, work: asyncio.Task[list[Turn]]) -> None:
        """Events as they come; until the first, an error still gets its own status."""
        writer = self._dialect.writer(self._asked)
        begun: set[int] = set()
        while (news := await self._news.get()) is not None:
            assert isinstance(news, tuple)
            choice, what = news
            event = b""
            if not begun:
                await self._send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
            if choice not in begun:
                begun.add(choice)
                event = writer.start(choice)
            event += writer.piece(choice, what) if isinstance(what, Piece) else writer.end(choice, what)
            if event:
                await self._send({"type": "http.response.body", "body": event, "more_body": True})
        if work.cancelled():
            return
        error = work.exception()
        if error is None:
            last = writer.close(work.result())
        elif not isinstance(error, Refused):
            raise error
        elif not begun:
            await _answer(self._send, error.status, self._dialect.error(error))
            return
        else:
            last = writer.error(error)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})


async def _body(scope: Scope, receive: Receive) -> bytes | None:
    """The request's body; None if the client left meanwhile. Raises Refused."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > MAX_BODY:
            raise _too_large()
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large() -> Refused:
    return Refused(f"The request's body exceeds {MAX_BODY >> 20} MiB.", status=413, code="request_too_large")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
        if b"\\ud" in body or b"\\uD" in body:  # surrogates, which may be alone
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refused(f"The request's body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise Refused("The request's body must be a JSON object.", code="invalid_json")
    return value


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    content = json.dumps(body, separators=(",", ":")).encode()
    headers = [*_JSON, (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": False})
