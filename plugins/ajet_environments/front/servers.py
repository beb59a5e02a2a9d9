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


class Instance(Protocol):
    """A running server, spoken to."""

    @property
    def tools(self) -> Sequence[Json]:
        """The tools as MCP lists them, with the names that the server gave them."""
        ...

    @property
    def alive(self) -> bool:
        """False once nothing more can come from it."""
        ...

    async def call(self, name: str, arguments: Json) -> Json:
        """MCP's result of `tools/call`. Raises BoundaryError where there is none: the instance is not to be used
        again, unless it is shared and still `alive`."""
        ...

    async def close(self) -> None:
        """End it, with all that it started."""
        ...


Start = Callable[[str], Awaitable[Instance]]
"""Starts one for the episode of that name; "" starts one ahead. Raises BoundaryError."""


@dataclass(slots=True)
class Pool:
    """The instances of one of the environment's servers. On the front's loop."""

    name: str
    start: Start
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
    waiting: list[Instance] = field(default_factory=list)
    queue: deque[asyncio.Future[Instance | None]] = field(default_factory=deque)
    """Those who wait for one; told None, they may start one."""
    used: int = 0
    starting: set[asyncio.Task[None]] = field(default_factory=set)
    _background: set[asyncio.Future[None]] = field(default_factory=set)
    closed: bool = False
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
            self._refill()
        else:
            await _quietly(first.close())

    async def take(self, episode: str = "") -> Instance:
        """Take an instance for an episode. Raises BoundaryError where none can be had."""
        if self.per == "shared":
            return await self._shared()
        found = await self._turn()
        self._refill()
        try:
            return found or await self.start(episode)
        except BaseException:
            self._freed()
            raise

    async def give_back(self, instance: Instance) -> None:
        """An episode is over, or has lost it."""
        if self.per == "shared":
            return
        try:
            if await self._renewed(instance):
                self.waiting.append(instance)
            else:
                await _quietly(instance.close())
        finally:
            self._freed()

    async def _renewed(self, instance: Instance) -> bool:
        """Whether the next episode may have it."""
        wanted = not self.closed and (self.queue or len(self.waiting) < max(self.spare, 1))
        if not (self.reset and instance.alive and wanted):
            return False
        try:
            answer = await instance.call(self.reset, {})
        except BoundaryError as problem:
            logger.warning("{}: reset failed: {}", self.name, problem)
            return False
        return not answer.get("isError")

    async def _turn(self) -> Instance | None:
        """An instance that waits; None: there is room to start one. It counts as used. Raises EnvironmentFailure."""
        if self.closed:
            raise self._ended()
        turn: asyncio.Future[Instance | None] = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        self._grant()
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
                self._freed()
            turn.cancel()
            raise

    def _grant(self) -> None:
        """To those who wait, in turn, what there is."""
        while self.queue:
            if self.queue[0].done():  # it was given up
                self.queue.popleft()
                continue
            found = self._alive()
            if found is None and self._room() < 1:
                return
            self.used += 1
            self.queue.popleft().set_result(found)

    def _freed(self) -> None:
        self.used -= 1
        self._grant()
        self._refill()

    def _alive(self) -> Instance | None:
        while self.waiting:
            found = self.waiting.pop(0)
            if found.alive:
                return found
            self._beside(_quietly(found.close()))
        return None

    def _room(self) -> int:
        """The number of instances that may still be started."""
        return self.limit - self.used - len(self.waiting) - len(self.starting) - len(self._background)

    async def close(self) -> None:
        """End all that wait, and those being started; none is started any more."""
        self.closed = True
        for turn in self.queue:
            if not turn.done():
                turn.set_exception(self._ended())
        for task in self.starting:
            task.cancel()
        await asyncio.gather(*self.starting, *self._background, return_exceptions=True)
        for instance in self.waiting:
            await _quietly(instance.close())
        self.waiting.clear()

    async def _shared(self) -> Instance:
        async with self.renewing:
            if self.closed:
                raise self._ended()
            if not self.waiting or not self.waiting[0].alive:
                for dead in self.waiting:
                    await _quietly(dead.close())
                self.waiting[:] = [await self.start("")]
            return self.waiting[0]

    def _refill(self) -> None:
        if self.per == "shared" or self.off or self.closed:
            return
        missing = self.spare - len(self.waiting) - len(self.starting)
        for _ in range(min(missing, self._room())):
            task = asyncio.get_running_loop().create_task(self._start_ahead())
            self.starting.add(task)
            task.add_done_callback(self._started)

    def _started(self, task: asyncio.Task[None]) -> None:
        self.starting.discard(task)
        self._grant()

    async def _start_ahead(self) -> None:
        try:
            found = await self.start("")
        except BoundaryError as problem:  # whoever needs it is told when it is needed
            logger.warning("{}: could not be started ahead: {}", self.name, problem)
        else:
            self.waiting.append(found)

    def _ended(self) -> EnvironmentFailure:
        return EnvironmentFailure(f"{self.name}: the environment is being ended")

    def _beside(self, closing: Awaitable[None]) -> None:
        """Close an instance in the background; it keeps its place until it is closed."""
        task = asyncio.ensure_future(closing)
        self._background.add(task)
        task.add_done_callback(self._closed_beside)

    def _closed_beside(self, task: asyncio.Future[None]) -> None:
        self._background.discard(task)
        self._grant()
        self._refill()


async def _quietly(closing: Awaitable[None]) -> None:
    with suppress(BoundaryError, OSError, TimeoutError):
        await closing
