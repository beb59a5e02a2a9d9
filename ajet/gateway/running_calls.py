"""Running calls: the calls of one session that are under way, and how each of them ends in its capture.

Invariant: a call is settled exactly once, with the ids that were sampled by then, whatever ended it: its end, its
client's leaving, its engine's failure, its episode's end. On the gateway's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ajet.gateway.capture import CLIENT_LEFT, Entry, Recorder, Sampled
from ajet.gateway.turn import Refused
from ajet.schema.call import Call
from ajet.schema.errors import EngineFailure, EngineHangs

Inspect = Callable[[Call, dict[str, Any]], list[str]]
EPISODE_ENDED = "the episode ended"
ENGINE_FAILED = "engine_failure"
"""The code of a request whose engine failed."""


_BUSY = 16
_EVENTS = 10_000
"""A second, of all streams together; more than that is more than one loop can send."""
_TIMES_LATE = 6
"""A stream rests as many times longer as the loop is late: the fewer events, the sooner all replies are whole."""
_LONGEST = 1.0
"""Seconds that it rests for that, at most: a loop that was stopped and goes on minutes later is not late by itself."""
_MEMORY = 64
"""Of so many last gatherings the rest is the mean, the latest counting most."""


class Load:
    """The number of calls that a gateway has under way, and the number that it takes."""

    def __init__(self, most: int) -> None:
        self.now, self._most = 0, most
        self.clients = 0
        """Requests whose replies are awaited."""
        self._rest = 0.0
        """Seconds that streams rest because the loop comes late to what is due."""

    def gathered(self, late: float) -> None:
        """A stream that gathered tokens went on so many seconds after its time."""
        self._rest += (min(_TIMES_LATE * late, _LONGEST) - self._rest) / _MEMORY

    @property
    def busy(self) -> bool:
        """So many clients wait that tokens which came together are read and sent together."""
        return self.clients > _BUSY

    @property
    def breath(self) -> float:
        """Seconds in which a stream gathers tokens before it sends again; 0: it sends them as they come. The longer,
        the later the loop is: what it cannot send in time would only be later in more pieces."""
        return self.clients / _EVENTS + self._rest if self.busy else 0.0

    def refuse_more(self, calls: int = 1) -> None:
        """Raises Refused where so many more are too many."""
        if self.now + calls > self._most:
            raise Refused(
                f"{self.now} calls are under way, and this gateway takes no more than {self._most}; try again later.",
                status=429,
                code="overloaded",
                retry_after=1,
            )


class RunningCalls:
    """See the module. `inspect` names the checks that a reply fires; with `terminate` the first ends the episode."""

    def __init__(self, load: Load, inspect: Inspect | None, terminate: bool) -> None:
        self.recorder = Recorder()
        self.closed = False
        self.load = load
        self.turnstile = asyncio.Lock()
        """Held from a call's arrival until it is in the capture, which may be a while: so that calls enter in the
        order in which they came."""
        self._inspect, self._terminate = inspect, terminate
        self._active: dict[int, tuple[asyncio.Task[Any] | None, Entry, Sampled]] = {}

    @property
    def idle(self) -> bool:
        """No call is under way."""
        return not self._active

    def refuse_ended(self) -> None:
        """Raises Refused where the episode has ended."""
        if self.closed:
            raise _ended()
        if self.recorder.capture.terminated is not None:
            raise Refused(
                f"this episode was ended by the check {self.recorder.capture.terminated!r}",
                status=410,
                code="episode_terminated",
            )

    @contextmanager
    def under_way(self, entry: Entry, sampled: Sampled) -> Iterator[None]:
        """While this runs, `sampled` may grow. An end other than its own settles the call. Raises Refused."""
        entry.settled, entry.call.error = False, None
        index, done = entry.call.index, False
        self._active[index] = (asyncio.current_task(), entry, sampled)
        self.load.now += 1
        try:
            yield
            done = True
        except asyncio.CancelledError:
            self._abort(entry, sampled, CLIENT_LEFT)
            if self.closed:
                raise _ended() from None
            raise
        except EngineFailure as error:
            self.recorder.capture.may_engine_recover = error.retryable
            sampled.write(entry.call)
            self.recorder.settle(entry, "error", error=str(error))
            raise _failed(error) from error
        finally:
            if not done and not entry.settled:
                sampled.write(entry.call)
                self.recorder.settle(entry, "error", error="ajet: an unexpected error in the engine")
            self.load.now -= 1
            del self._active[index]
        if entry.settled:
            raise _ended()

    def abort_all(self) -> None:
        """The episode has ended: settle what is under way."""
        for task, entry, sampled in list(self._active.values()):
            self._abort(entry, sampled, EPISODE_ENDED)
            if task is not None:
                task.cancel()

    def look(self, call: Call, message: dict[str, Any]) -> None:
        """A reply is complete: which checks does it fire?"""
        if self._inspect is None:
            return
        fired = self._inspect(call, message)
        if fired:
            self.recorder.check(fired, call)
            if self._terminate:
                self.recorder.capture.terminated = fired[0]

    def _abort(self, entry: Entry, sampled: Sampled, why: str) -> None:
        if not entry.settled:
            sampled.write(entry.call)
            self.recorder.settle(entry, "aborted", error=why)


def _failed(error: EngineFailure) -> Refused:
    """A client that asked a server again which hangs would wait as long again: whether to is the rollout's."""
    if isinstance(error, EngineHangs):
        return Refused(f"the engine failed: {error}", status=504, code=ENGINE_FAILED, final=True)
    return Refused(f"the engine failed: {error}", status=503, code=ENGINE_FAILED, final=not error.retryable)


def _ended() -> Refused:
    return Refused("this episode has ended", status=410, code="episode_finished")
