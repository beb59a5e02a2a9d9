from __future__ import annotations

import asyncio
import threading

from ajet.environment.loop import on_tools_loop, tools_loop


def test_what_comes_as_its_caller_is_cancelled_is_unclaimed() -> None:
    """On a busy loop the answer is there a turn before who waits for it goes on."""
    let_go = threading.Event()

    async def made() -> str:
        return "a session"

    async def unclaimed(session: str) -> None:
        assert session == "a session"
        let_go.set()

    async def cancelled_in_between() -> None:
        asking = asyncio.ensure_future(on_tools_loop(made(), unclaimed))
        await asyncio.sleep(0)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), tools_loop()).result()  # what was made is on its way here
        asyncio.get_running_loop().call_soon(asking.cancel)
        await asyncio.wait([asking])
        assert asking.cancelled()

    asyncio.run(cancelled_in_between())
    assert let_go.wait(20)
