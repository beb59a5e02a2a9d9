"""Matches JSON-RPC replies on one stream (a pipe, or an SSE stream) with their requests.

Invariant: each request ends once: by its reply, its deadline, or the end of the stream. The end of the stream fails all
waiting and all later requests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from ajet_mcp.contract import CallFailedError
from ajet_mcp.thin.messages import expects_reply, id_of, notification, refusal, request, result_of

MOST_REFUSALS = 100
"""Limit of refusals waiting to be sent; a server with more requests does not read its input."""
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Answers:
    """Sends the requests of one connection and gives each caller its reply."""

    def __init__(self, name: str, send: Send) -> None:
        self._name, self._send = name, send
        self._numbers = itertools.count(1)
        self._future_of_request: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        self.over: CallFailedError | None = None
        """The reason why the connection has ended, or None."""

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for its result.

        Args:
            method: JSON-RPC method.
            seconds: deadline of the reply.

        Raises:
            CallFailedError: the connection ended, or the deadline passed.
            RpcError: the server answered with an error.
        """
        if self.over is not None:
            raise CallFailedError(str(self.over), "environment", delivered=False, lost=True)
        request_id = next(self._numbers)
        reply_future = self._future_of_request[request_id] = asyncio.get_running_loop().create_future()
        try:
            return result_of(
                await asyncio.wait_for(self._send_and_wait(request(request_id, method, params), reply_future), seconds)
            )
        except (TimeoutError, asyncio.CancelledError) as problem:
            if self.over is None and method != "initialize":
                details = {"requestId": request_id, "reason": "no one waits for it"}
                self._send_in_background(notification("notifications/cancelled", details))
            if isinstance(problem, asyncio.CancelledError):
                raise
            raise CallFailedError(
                f"the MCP server {self._name} did not answer within {seconds:.3g} s", "timeout"
            ) from None
        finally:
            self._future_of_request.pop(request_id, None)
            if reply_future.done() and not reply_future.cancelled():
                reply_future.exception()  # marks the exception as retrieved, even without a waiter

    async def _send_and_wait(
        self, message: Mapping[str, Any], answer: asyncio.Future[dict[str, Any]]
    ) -> dict[str, Any]:
        """Send a request, then wait for its reply, which `take` sets in the future."""
        await self._send(message)
        return await answer

    def take(self, message: dict[str, Any]) -> None:
        """Give a received message to the waiting request, or refuse a request of the server."""
        if "method" in message:
            if expects_reply(message):
                self._refuse_request(message)
            return
        request_id = id_of(message)
        if request_id is None and message.get("error") is not None and len(self._future_of_request) == 1:
            (request_id,) = self._future_of_request  # an unreadable request: the server knows no id
        reply_future = self._future_of_request.get(request_id) if request_id is not None else None
        if reply_future is not None and not reply_future.done():
            reply_future.set_result(message)

    def _refuse_request(self, message: Mapping[str, Any]) -> None:
        """Answer a request of the server with a refusal, in the background.

        A server that reads no refusals would fill the memory, so too many of them end the connection.
        """
        if len(self._background_tasks) < MOST_REFUSALS:
            self._send_in_background(refusal(message))
        elif self.over is None:
            reason = f"the MCP server {self._name} sent more than {MOST_REFUSALS} requests without reading the replies"
            self.end(CallFailedError(reason, "transport", lost=True))

    def fail(self, problem: CallFailedError, number: int | None = None) -> None:
        """Raise an error in the waiting request with the id `number`, or in all waiting requests if it is None."""
        for request_id, reply_future in self._future_of_request.items():
            if (number is None or request_id == number) and not reply_future.done():
                reply_future.set_exception(problem)

    def end(self, problem: CallFailedError) -> None:
        """Mark the connection as ended: all waiting and later requests fail with this error."""
        if self.over is None:
            self.over = problem
            self.fail(problem)
        for task in self._background_tasks:
            task.cancel()

    def _send_in_background(self, message: Mapping[str, Any]) -> None:
        """Send a message in a task, and ignore its failure."""

        async def send() -> None:
            with suppress(CallFailedError):  # the end of the stream reports the failure to waiting requests
                await self._send(message)

        task = asyncio.create_task(send())
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
