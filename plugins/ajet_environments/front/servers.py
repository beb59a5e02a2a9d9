"""Pools of server instances, one pool per tool server of the environment.

Invariants: an instance serves one episode at a time unless its server is shared. A used instance is closed or reset
before another episode gets it. `spare` instances are started in advance, and at most `limit` exist. Episodes get
instances in order of their requests, and never a dead one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.schema.errors import BoundaryError, EnvironmentFailure
from ajet_environments.deployment.description import Per

if TYPE_CHECKING:
    from ajet_environments.deployment.instances import McpInstance

Json = Mapping[str, Any]


StartInstance = Callable[[str], Awaitable["McpInstance"]]
"""Starts an instance for the named episode; "" starts a spare one. Raises BoundaryError."""


@dataclass(slots=True)
class InstancePool:
    """Starts, lends, resets and closes the instances of one server, on one event loop."""

    name: str
    start: StartInstance
    per: Per = "episode"
    spare: int = 1
    """Number of waiting instances; with 0 and known tools no instance starts before a call."""
    limit: int = 64
    """Largest number of instances at once."""
    reset: str = ""
    """A tool that resets an instance for the next episode; without one the instance is ended."""
    off: str = ""
    """Why the server is not started; its listed tools answer with the reason."""
    tools: Sequence[Json] = ()
    patience: float = 120.0
    """Seconds to wait for a free instance."""
    waiting: list[McpInstance] = field(default_factory=list)
    queue: deque[asyncio.Future[McpInstance | None]] = field(default_factory=deque)
    """Futures of waiting episodes; the result None permits a start."""
    used: int = 0
    starting: set[asyncio.Task[None]] = field(default_factory=set)
    _background_tasks: set[asyncio.Future[None]] = field(default_factory=set)
    is_closed: bool = False
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a shared instance starts, so that concurrent callers get the same instance."""

    async def open(self) -> None:
        """Start a first instance to read the server's tools, and keep it as a spare if wanted.

        Raises:
            BoundaryError: the instance does not start.
        """
        if self.off or (self.tools and not self.spare):
            return
        instance = await self.start("")
        self.tools = list(instance.tools)
        if self.spare or self.per == "shared":
            self.waiting.append(instance)
            self._start_spares()
        else:
            await _ignore_failures(instance.close())

    async def take(self, episode: str = "") -> McpInstance:
        """Return an instance for an episode: the shared one, a spare one, or a newly started one.

        Args:
            episode: id of the episode; "" for a shared server.

        Raises:
            BoundaryError: no instance is free in time, or the start failed.
        """
        if self.per == "shared":
            return await self._take_shared()
        spare_instance = await self._wait_for_turn()
        self._start_spares()
        try:
            return spare_instance or await self.start(episode)
        except BaseException:
            self._free_slot()
            raise

    async def give_back(self, instance: McpInstance) -> None:
        """Take an instance back from an episode: reset it for the next episode, or close it. A shared one stays."""
        if self.per == "shared":
            return
        try:
            if await self._reset_instance(instance):
                self.waiting.append(instance)
            else:
                await _ignore_failures(instance.close())
        finally:
            self._free_slot()

    async def _reset_instance(self, instance: McpInstance) -> bool:
        """Call the server's reset tool. Return True if the next episode may use the instance."""
        is_wanted = not self.is_closed and (self.queue or len(self.waiting) < max(self.spare, 1))
        if not (self.reset and instance.is_alive and is_wanted):
            return False
        try:
            answer = await instance.call(self.reset, {})
        except BoundaryError as problem:
            logger.warning("the server {} could not be reset: {}", self.name, problem)
            return False
        return not answer.get("isError")

    async def _wait_for_turn(self) -> McpInstance | None:
        """Wait for a free instance, or for permission to start one (None).

        Either result occupies one slot of `limit`. Raises EnvironmentFailure after `patience` seconds.
        """
        if self.is_closed:
            raise self._make_ended_error()
        turn: asyncio.Future[McpInstance | None] = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        self._grant_turns()
        try:
            if not turn.done():
                await asyncio.wait([turn], timeout=self.patience)
            if not turn.done():
                turn.cancel()
                raise EnvironmentFailure(
                    f"the server {self.name}: all {self.limit} instances are in use, and none became free within "
                    f"{self.patience:g} s"
                )
            return turn.result()
        except asyncio.CancelledError:
            # The turn was granted at the moment of the cancellation: its slot and instance go back to the pool.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                if (unused := turn.result()) is not None:
                    self.waiting.append(unused)
                self._free_slot()
            turn.cancel()
            raise

    def _grant_turns(self) -> None:
        """Assign free instances and free slots to waiting episodes, first come, first served."""
        while self.queue:
            if self.queue[0].done():  # the waiting episode has timed out or was cancelled
                self.queue.popleft()
                continue
            instance = self._pop_waiting()
            if instance is None and self._count_room() < 1:
                return
            self.used += 1
            self.queue.popleft().set_result(instance)

    def _free_slot(self) -> None:
        """Give a used slot back, and use it for a waiting episode or a spare instance."""
        self.used -= 1
        self._grant_turns()
        self._start_spares()

    def _pop_waiting(self) -> McpInstance | None:
        """Remove and return the oldest living spare instance, and close dead ones on the way; None without one."""
        while self.waiting:
            instance = self.waiting.pop(0)
            if instance.is_alive:
                return instance
            self._close_in_background(_ignore_failures(instance.close()))
        return None

    def _count_room(self) -> int:
        """Return how many further instances `limit` allows."""
        return self.limit - self.used - len(self.waiting) - len(self.starting) - len(self._background_tasks)

    async def close(self) -> None:
        """Close all unused instances, cancel running starts, and fail waiting episodes."""
        self.is_closed = True
        for turn in self.queue:
            if not turn.done():
                turn.set_exception(self._make_ended_error())
        for task in self.starting:
            task.cancel()
        await asyncio.gather(*self.starting, *self._background_tasks, return_exceptions=True)
        for instance in self.waiting:
            await _ignore_failures(instance.close())
        self.waiting.clear()

    async def _take_shared(self) -> McpInstance:
        """Return the living shared instance, and start a new one if it has died."""
        async with self.renewing:
            if self.is_closed:
                raise self._make_ended_error()
            if not self.waiting or not self.waiting[0].is_alive:
                for dead in self.waiting:
                    await _ignore_failures(dead.close())
                self.waiting[:] = [await self.start("")]
            return self.waiting[0]

    def _start_spares(self) -> None:
        """Start as many spare instances in the background as are missing and as `limit` allows."""
        if self.per == "shared" or self.off or self.is_closed:
            return
        missing = self.spare - len(self.waiting) - len(self.starting)
        for _ in range(min(missing, self._count_room())):
            task = asyncio.get_running_loop().create_task(self._start_spare())
            self.starting.add(task)
            task.add_done_callback(self._finish_start)

    def _finish_start(self, task: asyncio.Task[None]) -> None:
        """Forget the finished start, and give the instance or the slot to a waiting episode."""
        self.starting.discard(task)
        self._grant_turns()

    async def _start_spare(self) -> None:
        """Start one spare instance. A failure is only logged."""
        try:
            instance = await self.start("")
        except BoundaryError as problem:  # a later call starts the server itself, and gets the error
            logger.warning("the server {} could not be started in advance: {}", self.name, problem)
        else:
            self.waiting.append(instance)

    def _make_ended_error(self) -> EnvironmentFailure:
        return EnvironmentFailure(f"{self.name}: the environment is shutting down")

    def _close_in_background(self, closing: Awaitable[None]) -> None:
        """Close a dead instance in a task. Its slot is free once the task ends."""
        task = asyncio.ensure_future(closing)
        self._background_tasks.add(task)
        task.add_done_callback(self._finish_close)

    def _finish_close(self, task: asyncio.Future[None]) -> None:
        """Forget the finished close, and use the freed slot for a waiting episode or a spare instance."""
        self._background_tasks.discard(task)
        self._grant_turns()
        self._start_spares()


async def _ignore_failures(closing: Awaitable[None]) -> None:
    """Await the closing of an instance, and ignore its failure: the instance is not used any more."""
    with suppress(BoundaryError, OSError, TimeoutError):
        await closing
