"""An event loop of ajet's own in a thread of its own, and waiting on it.

Invariant: the loop is closed by its thread once it is stopped, with the descriptors that it holds; tasks that are under
way then are cancelled and have `TIDY_TIME` to end.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

TIDY_TIME = 1.0
"""Seconds that cancelled tasks get to end."""


class OwnLoop:
    """Runs `loop` from its creation until `stop`."""

    def __init__(self, name: str) -> None:
        """Start the thread of this name."""
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self.thread.start()

    def stop(self, patience: float) -> None:
        """End the loop and wait up to `patience` seconds for its thread. Idempotent.

        Work that holds the loop up for longer ends with this process.
        """
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(patience)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(tidy(self.loop))
        finally:
            self.loop.close()


async def tidy(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of this loop, which must be the running one, and wait a while for them."""
    rest = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=TIDY_TIME)
    await loop.shutdown_asyncgens()


async def wait_first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of the futures is done, or the time is over."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
