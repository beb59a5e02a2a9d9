"""Calls from other threads in their order, with one wake for those that wait."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextvars import ContextVar

import pytest

from ajet.gateway.transport import LoopCalls, loop_calls_of


class Counted(asyncio.SelectorEventLoop):
    """A loop that counts how often it is woken."""

    woken = 0

    def call_soon_threadsafe(self, *arguments, **more):
        self.woken += 1
        return super().call_soon_threadsafe(*arguments, **more)


async def _until(there) -> None:
    while not there():
        await asyncio.sleep(0)


def test_what_is_posted_meanwhile_comes_in_its_order_with_one_wake():
    loop, seen = Counted(), []
    calls = LoopCalls(loop)
    for number in range(5):
        calls.post(seen.append, number)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert (seen, loop.woken) == ([0, 1, 2, 3, 4], 1)

    calls.post(seen.append, "later")
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert (seen[-1], loop.woken) == ("later", 2)
    loop.close()


def test_each_call_has_the_context_of_who_posted_it():
    """A task that it begins is that episode's, and not the one's whose call woke the loop."""
    loop, seen, whose = asyncio.SelectorEventLoop(), [], ContextVar("whose", default="nobody")
    calls = LoopCalls(loop)
    for name in ("one", "another"):
        token = whose.set(name)
        calls.post(lambda: seen.append(whose.get()))
        whose.reset(token)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert seen == ["one", "another"]


def test_threads_that_post_at_once_lose_nothing():
    each, threads = 500, 4
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        calls, done = loop_calls_of(asyncio.get_running_loop()), asyncio.Event()

        def take(thread: int, number: int) -> None:
            seen.append((thread, number))
            if len(seen) == each * threads:
                done.set()

        def post(thread: int) -> None:
            for number in range(each):
                calls.post(take, thread, number)

        posting = [threading.Thread(target=post, args=(thread,)) for thread in range(threads)]
        for thread in posting:
            thread.start()
        await asyncio.wait_for(done.wait(), 60)
        for thread in posting:
            thread.join()

    asyncio.run(main())
    for thread in range(threads):
        assert [number for by, number in seen if by == thread] == list(range(each))


def test_a_call_that_fails_keeps_no_other_from_running():
    loop, seen, failed = asyncio.SelectorEventLoop(), [], []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    calls = LoopCalls(loop)
    calls.post(int, "no number")
    calls.post(seen.append, 1)
    loop.run_until_complete(asyncio.wait_for(_until(lambda: seen), 60))
    loop.close()
    assert seen == [1] and isinstance(failed[0], ValueError)


@pytest.mark.slow
def test_a_closed_loop_is_said_and_none_is_kept():
    loop = asyncio.SelectorEventLoop()
    calls, gone = loop_calls_of(loop), weakref.ref(loop)
    assert loop_calls_of(loop) is calls
    calls.post(print)  # nobody will run it
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        calls.post(print)
    del loop
    gc.collect()
    assert gone() is None
    with pytest.raises(RuntimeError, match="closed"):
        calls.post(print)
