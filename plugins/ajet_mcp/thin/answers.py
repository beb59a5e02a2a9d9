"""Answers that come on one stream (a pipe, an old SSE stream) to requests that were sent on another way.

Invariant: every request that was announced is settled once: by its answer, by its deadline, or by the end of the
stream, which fails all that wait and all that come later.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from ajet_mcp.contract import CallFailedError
from ajet_mcp.thin.messages import asks, id_of, notification, refusal, request, result_of

MOST_REFUSALS = 100
"""Requests of a server's that wait to be refused, at most: one that asks more does not read."""
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Answers:
    """Waits for the answers of one connection; several sessions may share it."""

    def __init__(self, name: str, send: Send) -> None:
        self._name, self._send = name, send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.over: CallFailedError | None = None
        """Why nothing is answered any more."""

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The result of a request. Raises CallFailedError, RpcError."""
        if self.over is not None:
            raise CallFailedError(str(self.over), "environment", delivered=False, lost=True)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return result_of(
                await asyncio.wait_for(self._send_request(request(number, method, params), answer), seconds)
            )
        except (asyncio.TimeoutError, asyncio.CancelledError) as problem:
            if self.over is None and method != "initialize":
                told = {"requestId": number, "reason": "no one waits for it"}
                self._send_in_background(notification("notifications/cancelled", told))
            if isinstance(problem, asyncio.CancelledError):
                raise
            raise CallFailedError(
                f"the MCP server {self._name} did not answer within {seconds:.3g} s", "timeout"
            ) from None
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, also where nobody waited any more

    async def _send_request(self, message: Mapping[str, Any], answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        await self._send(message)
        return await answer

    def take(self, message: dict[str, Any]) -> None:
        """Take a message that came."""
        if "method" in message:
            if asks(message):
                self._refuse_request(message)
            return
        number = id_of(message)
        if number is None and message.get("error") is not None and len(self._waiting) == 1:
            (number,) = self._waiting  # a request that the server could not read: it knows no id
        waiting = self._waiting.get(number) if number is not None else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _refuse_request(self, asked: Mapping[str, Any]) -> None:
        if len(self._background) < MOST_REFUSALS:
            self._send_in_background(refusal(asked))
        elif self.over is None:
            said = f"the MCP server {self._name} asks more than {MOST_REFUSALS} things and takes no answer"
            self.end(CallFailedError(said, "transport", lost=True))

    def fail(self, problem: CallFailedError, number: int | None = None) -> None:
        """Fail one request, or all that wait."""
        for each, waiting in self._waiting.items():
            if (number is None or each == number) and not waiting.done():
                waiting.set_exception(problem)

    def end(self, problem: CallFailedError) -> None:
        """Fail all that wait, and all that come: nothing is answered any more."""
        if self.over is None:
            self.over = problem
            self.fail(problem)
        for task in self._background:
            task.cancel()

    def _send_in_background(self, message: Mapping[str, Any]) -> None:
        async def send() -> None:
            with suppress(CallFailedError):  # the stream's end says it to those who wait
                await self._send(message)

        task = asyncio.create_task(send())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
