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

from ajet.environment.mcp.contract import CallFailed
from ajet.environment.mcp.thin.messages import asks, id_of, notification, refusal, request, result_of

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Answers:
    """Waits for the answers of one connection; several sessions may share it."""

    def __init__(self, name: str, send: Send) -> None:
        self._name, self._send = name, send
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.over: CallFailed | None = None
        """Why nothing is answered any more."""

    async def request(self, method: str, params: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The result of a request. Raises CallFailed, RpcError."""
        if self.over is not None:
            raise CallFailed(str(self.over), "environment", delivered=False, lost=True)
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return result_of(await asyncio.wait_for(self._asked(request(number, method, params), answer), seconds))
        except (asyncio.TimeoutError, asyncio.CancelledError) as problem:
            if self.over is None and method != "initialize":
                told = {"requestId": number, "reason": "no one waits for it"}
                self._in_background(self._send(notification("notifications/cancelled", told)))
            if isinstance(problem, asyncio.CancelledError):
                raise
            raise CallFailed(f"the MCP server {self._name} did not answer within {seconds:g} s", "timeout") from None
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, also where nobody waited any more

    async def _asked(self, message: Mapping[str, Any], answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        await self._send(message)
        return await answer

    def take(self, message: dict[str, Any]) -> None:
        """Take a message that came."""
        if asks(message):
            self._in_background(self._send(refusal(message)))
            return
        number = id_of(message)
        waiting = self._waiting.get(number) if number is not None else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def fail(self, problem: CallFailed, number: int | None = None) -> None:
        """Fail one request, or all that wait."""
        for each, waiting in self._waiting.items():
            if (number is None or each == number) and not waiting.done():
                waiting.set_exception(problem)

    def end(self, problem: CallFailed) -> None:
        """Fail all that wait, and all that come: nothing is answered any more."""
        if self.over is None:
            self.over = problem
            self.fail(problem)
        for task in self._background:
            task.cancel()

    def _in_background(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            with suppress(CallFailed):  # the stream's end says it to those who wait
                await work

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)
