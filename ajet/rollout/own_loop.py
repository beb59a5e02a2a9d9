"""An event loop in a thread of its own, for work of ours.

Invariant: the loop is closed by its thread once it is stopped, with the descriptors that it holds; what is under way on
it then is cancelled, and has `TIDY_TIME` to end.
"""

from __future__ import annotations

import asyncio
import threading

TIDY_TIME = 1.0
"""Seconds that what is cancelled gets to end."""


class OwnLoop:
    """`loop` runs from here on, until `stop`."""

    def __init__(self, name: str) -> None:
        """`name` of the thread."""
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def stop(self, patience: float) -> None:
        """End it, and wait so many seconds until it has ended: what holds it up longer ends with this process.
        Idempotent."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(patience)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(tidy(self.loop))
        finally:
            self.loop.close()


async def tidy(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all that is under way on a loop, which is this one, and wait for it a while."""
    rest = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=TIDY_TIME)
    await loop.shutdown_asyncgens()
