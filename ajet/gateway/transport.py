"""Transport: httpx clients of this process, handed straight to the gateway's loop.

Invariant: the reply streams (each part reaches the client as the gateway sends it), from any thread's event loop; a
client that closes its response, is cancelled or vanishes is a disconnect to the gateway, as over a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextvars import Context
from typing import Any

import httpx
from starlette.types import ASGIApp

from ajet.gateway.exchange import LOST, WATCH, Leave
from ajet.gateway.loop_calls import loop_calls_of

Message = MutableMapping[str, Any]


class GatewayTransport(httpx.AsyncBaseTransport):
    """Hands requests to the `app` of a gateway of this process, on the loop that `loop` answers while it runs. Holds no
    state of any loop."""

    def __init__(self, app: ASGIApp, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._app, self._loop = app, loop

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        exchange = _Exchange(self._app, self._loop, request, await request.aread())
        try:
            exchange.begin()
            start = await exchange.next()
        except BaseException:
            exchange.disconnect()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange, request=request)


class _Exchange(httpx.AsyncByteStream):
    """One request: the ASGI app on the gateway's loop, its messages queued in the client's."""

    def __init__(
        self, app: ASGIApp, loop: Callable[[], asyncio.AbstractEventLoop], request: httpx.Request, body: bytes
    ) -> None:
        self._app, self._gateways_loop = app, loop
        self._loop = asyncio.get_running_loop()
        self._calls = loop_calls_of(self._loop)
        self._messages: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._gone: asyncio.Event | None = None
        self._leave_told: Leave | None = None
        self._left = False
        self._ended = False
        self._head: Message | None = None
        """The reply's start, which waits for what comes with it: its client is woken once for both."""
        timeout = request.extensions.get("timeout") or {}
        self._patience: float | None = timeout.get("read")
        self._request = request
        self._incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "server": (request.url.host, request.url.port),
            "client": None,
            "state": {WATCH: self._watch},
        }

    def begin(self) -> None:
        try:
            # In no context of the caller's: what the gateway asks of an engine is no call of the agent's.
            Context().run(loop_calls_of(self._gateways_loop()).post, self._launch)
        except (RuntimeError, AssertionError) as error:
            raise httpx.ConnectError("the gateway is closed", request=self._request) from error

    async def next(self) -> Message:
        # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that comes together with the result.
        while not self._messages:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(self._patience, self._lose_patience) if self._patience is not None else None
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        message = self._messages.popleft()
        if message["type"] == "failed":
            raise httpx.RemoteProtocolError("the gateway ended the request", request=self._request)
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._ended:
            message = await self.next()
            self._ended = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def aclose(self) -> None:
        if not self._ended:
            self.disconnect()

    def disconnect(self) -> None:
        """The client has left. Thread-safe, idempotent."""
        self._left = True
        with contextlib.suppress(RuntimeError, AssertionError):  # the gateway is closed: nothing runs there
            loop_calls_of(self._gateways_loop()).post(self._leave)

    # On the client's loop.

    def _deliver(self, messages: Sequence[Message]) -> None:
        self._messages.extend(messages)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _lose_patience(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self.disconnect()
            self._waiter.set_exception(httpx.ReadTimeout("the gateway sent nothing", request=self._request))

    # On the gateway's loop.

    def _leave(self) -> None:
        if self._gone is not None:
            self._gone.set()
        told, self._leave_told = self._leave_told, None
        if told is not None:
            told()
        lost = self._scope["state"].pop(LOST, None)
        if lost is not None:
            lost()

    def _launch(self) -> None:
        task = asyncio.ensure_future(self._answer())
        task.add_done_callback(self._finished)
        self._task = task

    def _watch(self, leave: Leave | None) -> None:
        self._leave_told = leave
        if leave is not None and self._left:
            asyncio.get_running_loop().call_soon(leave)

    async def _answer(self) -> None:
        await self._app(self._scope, self._receive, self._send)
        if self._left:
            self._leave()

    def _finished(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._pass_on({"type": "failed"})

    async def _receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop()
        self._gone = asyncio.Event()
        if self._left:
            self._gone.set()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._left:
            raise OSError("the client has left")
        if message["type"] == "http.response.start":
            self._head = message
            asyncio.get_running_loop().call_soon(self._pass_on)
        else:
            self._pass_on(message)

    def _pass_on(self, *messages: Message) -> None:
        head, self._head = self._head, None
        told = messages if head is None else (head, *messages)
        if not told:
            return
        try:
            self._calls.post(self._deliver, told)
        except RuntimeError:  # the client's loop is closed
            self._left = True
            self._leave()
