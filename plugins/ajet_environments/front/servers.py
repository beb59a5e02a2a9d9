"""What is in front of: servers, and the instances of them that episodes use.

Invariant: an instance is used by one episode at a time unless its server is shared; what an episode had used is closed
or reset before another can have it; instances are started ahead, `spare` of them; there are never more than `limit`,
and who comes when all are in use gets one in turn, first come first served. One that has died is never given out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from loguru import logger

from ajet.schema.errors import BoundaryError, EnvironmentFailure

Json = Mapping[str, Any]
Per = Literal["episode", "shared"]


class ServerInstance(Protocol):
    """A running server, spoken to."""

    @property
    def tools(self) -> Sequence[Json]:
        """The tools as MCP lists them, with the names that the server gave them."""
        ...

    @property
    def is_alive(self) -> bool:
        """False once nothing more can come from it."""
        ...

    async def call(self, name: str, arguments: Json) -> Json:
        """MCP's result of `tools/call`. Raises BoundaryError where there is none: the instance is not to be used
        again, unless it is shared and still `alive`."""
        ...

    async def close(self) -> None:
        """End it, with all that it started."""
        ...


StartInstance = Callable[[str], Awaitable[ServerInstance]]
"""Starts one for the episode of that name; "" starts one ahead. Raises BoundaryError."""


@dataclass(slots=True)
class InstancePool:
    """The instances of one of the environment's servers. On the front's loop."""

    name: str
    start: StartInstance
    per: Per = "episode"
    spare: int = 1
    """How many wait, started ahead; with 0 and tools that are known none runs before it is called."""
    limit: int = 64
    """How many there may be at once."""
    reset: str = ""
    """A tool that makes it as new, called before another episode gets it; without one it is ended."""
    off: str = ""
    """Why it is not started; its tools are listed and answer this."""
    tools: Sequence[Json] = ()
    patience: float = 120.0
    """Seconds that one who comes when all are in use waits for one."""
    waiting: list[ServerInstance] = field(default_factory=list)
    queue: deque[asyncio.Future[ServerInstance | None]] = field(default_factory=deque)
    """Those who wait for one; told None, they may start one."""
    used: int = 0
    starting: set[asyncio.Task[None]] = field(default_factory=set)
    _background: set[asyncio.Future[None]] = field(default_factory=set)
    is_closed: bool = False
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a shared one is started: those who come meanwhile get the same."""

    async def open(self) -> None:
        """Learn its tools, from the first instance, which waits. Raises BoundaryError."""
        if self.off or (self.tools and not self.spare):
            return
        first = await self.start("")
        self.tools = list(first.tools)
        if self.spare or self.per == "shared":
            self.waiting.append(first)
            self._start_spares()
        else:
            await _ignore_failures(first.close())

    async def take(self, episode: str = "") -> ServerInstance:
        """Take an instance for an episode. Raises BoundaryError where none can be had."""
        if self.per == "shared":
            return await self._take_shared()
        found = await self._wait_for_turn()
        self._start_spares()
        try:
            return found or await self.start(episode)
        except BaseException:
            self._free_slot()
            raise

    async def give_back(self, instance: ServerInstance) -> None:
        """An episode is over, or has lost it."""
        if self.per == "shared":
            return
        try:
            if await self._reset_instance(instance):
                self.waiting.append(instance)
            else:
                await _ignore_failures(instance.close())
        finally:
            self._free_slot()

    async def _reset_instance(self, instance: ServerInstance) -> bool:
        """Whether the next episode may have it."""
        wanted = not self.is_closed and (self.queue or len(self.waiting) < max(self.spare, 1))
        if not (self.reset and instance.is_alive and wanted):
            return False
        try:
            answer = await instance.call(self.reset, {})
        except BoundaryError as problem:
            logger.warning("{}: reset failed: {}", self.name, problem)
            return False
        return not answer.get("isError")

    async def _wait_for_turn(self) -> ServerInstance | None:
        """An instance that waits; None: there is room to start one. It counts as used. Raises EnvironmentFailure."""
        if self.is_closed:
            raise self._make_ended_error()
        turn: asyncio.Future[ServerInstance | None] = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        self._grant_turns()
        try:
            if not turn.done():
                await asyncio.wait([turn], timeout=self.patience)
            if not turn.done():
                turn.cancel()
                raise EnvironmentFailure(
                    f"{self.name}: all {self.limit} instances are in use, and none was free within {self.patience:g} s"
                )
            return turn.result()
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                if (unused := turn.result()) is not None:
                    self.waiting.append(unused)
                self._free_slot()
            turn.cancel()
            raise

    def _grant_turns(self) -> None:
        """To those who wait, in turn, what there is."""
        while self.queue:
            if self.queue[0].done():  # it was given up
                self.queue.popleft()
                continue
            found = self._pop_waiting()
            if found is None and self._count_room() < 1:
                return
            self.used += 1
            self.queue.popleft().set_result(found)

    def _free_slot(self) -> None:
        self.used -= 1
        self._grant_turns()
        self._start_spares()

    def _pop_waiting(self) -> ServerInstance | None:
        while self.waiting:
            found = self.waiting.pop(0)
            if found.is_alive:
                return found
            self._close_in_background(_ignore_failures(found.close()))
        return None

    def _count_room(self) -> int:
        """The number of instances that may still be started."""
        return self.limit - self.used - len(self.waiting) - len(self.starting) - len(self._background)

    async def close(self) -> None:
        """End all that wait, and those being started; none is started any more."""
        self.is_closed = True
        for turn in self.queue:
            if not turn.done():
                turn.set_exception(self._make_ended_error())
        for task in self.starting:
            task.cancel()
        await asyncio.gather(*self.starting, *self._background, return_exceptions=True)
        for instance in self.waiting:
            await _ignore_failures(instance.close())
        self.waiting.clear()

    async def _take_shared(self) -> ServerInstance:
        async with self.renewing:
            if self.is_closed:
                raise self._make_ended_error()
            if not self.waiting or not self.waiting[0].is_alive:
                for dead in self.waiting:
                    await _ignore_failures(dead.close())
                self.waiting[:] = [await self.start("")]
            return self.waiting[0]

    def _start_spares(self) -> None:
        if self.per == "shared" or self.off or self.is_closed:
            return
        missing = self.spare - len(self.waiting) - len(self.starting)
        for _ in range(min(missing, self._count_room())):
            task = asyncio.get_running_loop().create_task(self._start_spare())
            self.starting.add(task)
            task.add_done_callback(self._finish_start)

    def _finish_start(self, task: asyncio.Task[None]) -> None:
        self.starting.discard(task)
        self._grant_turns()

    async def _start_spare(self) -> None:
        try:
            found = await self.start("")
        except BoundaryError as problem:  # whoever needs it is told when it is needed
            logger.warning("{}: could not be started ahead: {}", self.name, problem)
        else:
            self.waiting.append(found)

    def _make_ended_error(self) -> EnvironmentFailure:
        return EnvironmentFailure(f"{self.name}: the environment is being ended")

    def _close_in_background(self, closing: Awaitable[None]) -> None:
        """Close an instance in the background; it keeps its place until it is closed."""
        task = asyncio.ensure_future(closing)
        self._background.add(task)
        task.add_done_callback(self._finish_close)

    def _finish_close(self, task: asyncio.Future[None]) -> None:
        self._background.discard(task)
        self._grant_turns()
        self._start_spares()


async def _ignore_failures(closing: Awaitable[None]) -> None:
    with suppress(BoundaryError, OSError, TimeoutError):
        await closing
