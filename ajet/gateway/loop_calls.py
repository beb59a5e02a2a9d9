"""Loop calls: those handed to another thread's event loop, which is woken once for all that wait.

Invariant: each posted call runs on that loop, in the order in which it was posted and in its poster's context, as with
`call_soon_threadsafe`; to wake a loop takes a system call on both sides, so that it is left out while a wake is on its
way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakKeyDictionary, ref


class LoopCalls:
    """Passes calls to one loop. It belongs to no thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # a loop that nobody else holds is not kept by what _OF_LOOPS holds
        self._posted: deque[tuple[Context, Callable[..., object], tuple[Any, ...]]] = deque()
        self._waking = False

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have it called. Raises RuntimeError where the loop is closed. Thread-safe."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            raise RuntimeError("the event loop is closed")
        self._posted.append((copy_context(), function, arguments))
        if not self._waking:
            self._waking = True
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False  # first: who posts from now on and reads True has posted before the last look
        try:
            for _ in range(len(self._posted)):
                context, function, arguments = self._posted.popleft()
                context.run(function, *arguments)
        finally:
            if self._posted and not self._waking:  # one has failed, as the loop will say: the others are called yet
                self._waking = True
                asyncio.get_running_loop().call_soon(self._deliver)


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()


def loop_calls_of(loop: asyncio.AbstractEventLoop) -> LoopCalls:
    """The one of this loop. Thread-safe: of two that are made at once the first stays."""
    found = _OF_LOOPS.get(loop)
    return found if found is not None else _OF_LOOPS.setdefault(loop, LoopCalls(loop))
