"""GatewayTransport: an httpx transport that hands requests of this process to the gateway's loop.

Invariants: the reply streams (each part reaches the client when the gateway sends it), on any thread's event loop; a
client that closes its response, is cancelled or vanishes is a disconnect to the gateway, as over a socket. Waking
another loop takes a system call on both sides; several calls to one loop therefore share a wake.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import httpx
from starlette.types import ASGIApp

from ajet.gateway.asgi import LOST, WATCH, Leave

Message = MutableMapping[str, Any]


class LoopCalls:
    """Passes function calls to one event loop, in the order and contexts of their posts, like `call_soon_threadsafe`.

    Calls that are posted together wake the loop only once. Thread-safe.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # _CALLS_OF_LOOPS must not keep loops alive
        self._posted_calls: deque[tuple[Context, Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_waking = False

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop. Raises RuntimeError if the loop is closed."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            raise RuntimeError("the event loop is closed")
        self._posted_calls.append((copy_context(), function, arguments))
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon_threadsafe(self._run_posted)

    def _run_posted(self) -> None:
        """Run the calls posted so far, on the loop. Calls posted meanwhile have a wake of their own."""
        self._is_waking = False  # first: a poster that reads True from now on has posted before the last look
        try:
            for _ in range(len(self._posted_calls)):
                context, function, arguments = self._posted_calls.popleft()
                context.run(function, *arguments)
        finally:
            if self._posted_calls and not self._is_waking:  # a call failed (logged by the loop): the others still run
                self._is_waking = True
                asyncio.get_running_loop().call_soon(self._run_posted)


_CALLS_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()


def loop_calls_of(loop: asyncio.AbstractEventLoop) -> LoopCalls:
    """Return the LoopCalls of a loop. Thread-safe: concurrent callers get the same object."""
    calls = _CALLS_OF_LOOPS.get(loop)
    return calls if calls is not None else _CALLS_OF_LOOPS.setdefault(loop, LoopCalls(loop))


@dataclass(slots=True)
class GatewayLoop:
    """The state shared by a gateway and its transports."""

    calls: LoopCalls | None = None
    """Passes calls to the gateway's event loop; `None` while the gateway does not serve."""


class GatewayTransport(httpx.AsyncBaseTransport):
    """Hands requests to the `app` of a gateway in this process. Independent of event loops."""

    def __init__(self, app: ASGIApp, gateway_loop: GatewayLoop) -> None:
        self._app, self._gateway_loop = app, gateway_loop

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its streaming response."""
        response = InProcessResponse(self._app, self._gateway_loop, request, await request.aread())
        try:
            head = await response.next_message()
        except BaseException:
            response.disconnect()
            raise
        # A stream even if the body is complete: a client that closes it unread has left without the reply.
        return httpx.Response(head["status"], headers=head["headers"], stream=response, request=request)


class InProcessResponse(httpx.AsyncByteStream):
    """One request and its response. The application runs on the gateway's loop, its messages are queued on the
    client's.
    """

    def __init__(self, app: ASGIApp, gateway_loop: GatewayLoop, request: httpx.Request, body: bytes) -> None:
        """Start the request. Raises httpx.ConnectError if the gateway is closed."""
        self._app = app
        self._gateway_loop = gateway_loop
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._calls = loop_calls_of(self._loop)
        self._messages: deque[Message] = deque()
        self._wake_future: asyncio.Future[None] | None = None
        self._read_timeout: float | None = (request.extensions.get("timeout") or {}).get("read")
        self._has_ended = False

        # These attributes are used on the gateway's loop only, except `_has_left`.
        self._has_left = False
        self._disconnected: asyncio.Event | None = None
        self._on_leave: Leave | None = None
        self._unsent_head: Message | None = None
        """The head of the response, held until the first part of the body: one wake of the client for both."""
        self._request_messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        url = request.url
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "server": (url.host, url.port),
            "client": None,
            "state": {WATCH: self._watch_client},
        }
        try:
            calls = gateway_loop.calls  # read once: the gateway's thread sets it to None at its end
            if calls is None:
                raise RuntimeError("the gateway does not serve")
            # In an empty context: the gateway's requests to an engine are not calls of the agent.
            Context().run(calls.post, self._start_app)
        except RuntimeError as error:
            raise httpx.ConnectError("the gateway is closed", request=request) from error

    # The functions below run on the client's loop.

    async def next_message(self) -> Message:
        """Return the next ASGI message. Raises httpx.ReadTimeout or httpx.RemoteProtocolError."""
        # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that arrives together with the result.
        while not self._messages:
            self._wake_future = self._loop.create_future()
            timer: asyncio.TimerHandle | None = None
            if self._read_timeout is not None:
                timer = self._loop.call_later(self._read_timeout, self._time_out)
            try:
                await self._wake_future
            finally:
                self._wake_future = None
                if timer is not None:
                    timer.cancel()
        message = self._messages.popleft()
        if message["type"] == "failed":
            raise httpx.RemoteProtocolError("the gateway ended the request", request=self._request)
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the parts of the response's body."""
        while not self._has_ended:
            message = await self.next_message()
            self._has_ended = not message.get("more_body", False)
            if message.get("body"):
                yield message["body"]

    async def aclose(self) -> None:
        """Close the response. The gateway sees a disconnect if the response is incomplete."""
        if not self._has_ended:
            self.disconnect()

    def disconnect(self) -> None:
        """Report to the gateway that the client has left. Thread-safe, idempotent."""
        self._has_left = True
        calls = self._gateway_loop.calls
        if calls is not None:
            with contextlib.suppress(RuntimeError):  # the gateway is closed, and runs no request
                calls.post(self._handle_leave)

    def _deliver_messages(self, messages: Sequence[Message]) -> None:
        """Queue messages of the application for the client, and wake it."""
        self._messages.extend(messages)
        if self._wake_future is not None and not self._wake_future.done():
            self._wake_future.set_result(None)

    def _time_out(self) -> None:
        """Let the waiting `next_message` raise ReadTimeout, and report a disconnect to the gateway."""
        if self._wake_future is not None and not self._wake_future.done():
            self.disconnect()
            self._wake_future.set_exception(
                httpx.ReadTimeout("the gateway sent no reply within the client's read timeout", request=self._request)
            )

    # The functions below run on the gateway's loop.

    def _start_app(self) -> None:
        """Run the application for this request as a task of the gateway's loop."""
        self._task = asyncio.ensure_future(self._app(self._scope, self._receive_message, self._send_message))
        self._task.add_done_callback(self._finish_task)

    def _finish_task(self, task: asyncio.Future[None]) -> None:
        """Report a failed application to the client. After a success, handle a disconnect that came before the end."""
        if task.cancelled() or task.exception() is not None:
            with contextlib.suppress(RuntimeError):  # the client's loop is closed
                self._calls.post(self._deliver_messages, [{"type": "failed"}])
        elif self._has_left:
            self._handle_leave()

    def _handle_leave(self) -> None:
        """Tell the application that the client has left: by `receive`, and by the functions that it registered."""
        if self._disconnected is not None:
            self._disconnected.set()
        on_leave, self._on_leave = self._on_leave, None
        if on_leave is not None:
            on_leave()
        on_lost = self._scope["state"].pop(LOST, None)
        if on_lost is not None:
            on_lost()

    def _watch_client(self, on_leave: Leave | None) -> None:
        """Register the function to call when the client leaves. None unregisters it."""
        self._on_leave = on_leave
        if on_leave is not None and self._has_left:
            asyncio.get_running_loop().call_soon(on_leave)

    async def _receive_message(self) -> Message:
        """Return the request on the first call of ASGI's `receive`. Later calls wait for the client's disconnect."""
        if self._request_messages:
            return self._request_messages.pop()
        self._disconnected = asyncio.Event()
        if self._has_left:
            self._disconnected.set()
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send_message(self, message: Message) -> None:
        """Send an ASGI message to the client. Raises OSError if the client has left.

        The head is held until the first part of the body, so that both wake the client once.
        """
        if self._has_left:
            raise OSError("the client has left")
        if message["type"] == "http.response.start":
            self._unsent_head = message
            return
        messages = [message] if self._unsent_head is None else [self._unsent_head, message]
        self._unsent_head = None
        try:
            self._calls.post(self._deliver_messages, messages)
        except RuntimeError:  # the client's loop is closed
            self._has_left = True
            self._handle_leave()
