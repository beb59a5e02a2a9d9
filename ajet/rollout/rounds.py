"""RoundEngine: admits requests in rounds, and the composition of forward passes does not depend on timing.

Invariants (DESIGN decision 9b): a play starts with an empty cache. A round opens when every live episode waits for a
reply, and admits all waiting requests at once, ordered by (task, repeat, call). An engine with a `held()` context
starts no forward pass within the context, and gets the requests together. The requests of a round and their order thus
depend on the actions of the episodes and not on timing, as long as an episode has at most one call in flight. Several
calls of one episode share rounds by arrival.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from ajet.engine.contract import EngineWrapper, TokenChunk, TokenEngine, TokenRequest
from ajet.schema.errors import EngineFailure


@dataclass(slots=True, eq=False)
class _WaitingRequest:
    """A request that waits for the next round."""

    request: TokenRequest
    loop: asyncio.AbstractEventLoop
    admitted: asyncio.Future[None]

    @property
    def episode(self) -> tuple[int, int]:
        return self.request.key.task, self.request.key.repeat

    def admit(self) -> None:
        if not self.admitted.done():
            self.admitted.set_result(None)

    def refuse(self) -> None:
        if not self.admitted.done():
            self.admitted.set_exception(EngineFailure("the engine was closed", retryable=False))


class RoundEngine(EngineWrapper):
    """Wraps a TokenEngine and admits requests in rounds. The rollout reports the number of live episodes."""

    def __init__(self, engine: TokenEngine) -> None:
        super().__init__(engine)
        self._lock = threading.Lock()
        self._live_episodes = 0
        self._waiting_requests: list[_WaitingRequest] = []
        self.rounds: list[list[tuple[int, int, int]]] = []
        """(task, repeat, call) of the requests of each round of the current or last play."""

    def begin(self) -> None:
        """Start a play: empty the inner engine's cache. Blocks until no forward pass runs.

        A resumed run starts with an empty cache, too. A prompt of which the cache holds a part would differ in the last
        bits.
        """
        paused: Callable[[], AbstractContextManager[object]] | None = getattr(self._engine, "paused", None)
        if paused is not None:
            # An engine releases its cached prefixes when it pauses, so the block itself is empty.
            with paused():
                pass

    def expect(self, live: int) -> None:
        """Set the number of live episodes, each of which a round waits for. Thread-safe."""
        with self._lock:
            if live and not self._live_episodes:
                self.rounds.clear()
            self._live_episodes = live
            self._open_if_complete()

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Wait for the round, then stream from the inner engine."""
        loop = asyncio.get_running_loop()
        waiting = _WaitingRequest(request, loop, loop.create_future())
        with self._lock:
            self._waiting_requests.append(waiting)
            self._open_if_complete()
        try:
            await waiting.admitted
        except asyncio.CancelledError:
            with self._lock:
                if waiting in self._waiting_requests:
                    self._waiting_requests.remove(waiting)
            raise
        async for chunk in self._engine.generate(request):
            yield chunk

    def close(self) -> None:
        """Close the inner engine. Requests waiting for a round fail."""
        self._engine.close()
        with self._lock:
            waiting, self._waiting_requests = self._waiting_requests, []
        for waiter in waiting:
            waiter.loop.call_soon_threadsafe(waiter.refuse)

    def _open_if_complete(self) -> None:
        """Admit all waiting requests in order if each live episode has one. The caller holds the lock."""
        episodes = {waiting.episode for waiting in self._waiting_requests}
        if not episodes or len(episodes) < self._live_episodes:
            return
        batch = sorted(self._waiting_requests, key=lambda waiting: waiting.request.key[1:])
        self._waiting_requests = []
        self.rounds.append(
            [
                (waiting_request.request.key.task, waiting_request.request.key.repeat, waiting_request.request.key.call)
                for waiting_request in batch
            ]
        )
        requests_by_loop: dict[asyncio.AbstractEventLoop, list[_WaitingRequest]] = {}
        for waiting in batch:
            requests_by_loop.setdefault(waiting.loop, []).append(waiting)
        arrival = _RoundArrival(self._engine, len(requests_by_loop))
        for loop, requests in requests_by_loop.items():
            try:
                loop.call_soon_threadsafe(arrival.admit, loop, requests)
            except RuntimeError:  # the loop is closed, and the waiting requests ended with the loop
                arrival.note_arrival()


class _RoundArrival:
    """Holds back the engine's forward passes until every request of a round has reached the engine."""

    def __init__(self, engine: TokenEngine, loops: int) -> None:
        """Start to hold the engine. `loops` is the number of event loops whose requests are awaited."""
        self._loops_left = loops
        self._lock = threading.Lock()
        self._engine_holds = ExitStack()
        hold_engine: Callable[[], AbstractContextManager[object]] | None = getattr(engine, "held", None)
        if hold_engine is not None:
            self._engine_holds.enter_context(hold_engine())

    def admit(self, loop: asyncio.AbstractEventLoop, requests: list[_WaitingRequest]) -> None:
        """Admit the requests in order. Each reaches the engine before the loop runs `note_arrival`."""
        for waiting in requests:
            waiting.admit()
        loop.call_soon(self.note_arrival)

    def note_arrival(self) -> None:
        """Note the arrival of one loop's requests."""
        with self._lock:
            self._loops_left -= 1
            if self._loops_left:
                return
        self._engine_holds.close()
