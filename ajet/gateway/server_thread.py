"""Server thread: a thread that serves, and the wait until it does.

Invariant: who starts one hears how that went. It serves, or what kept it from serving is raised there: a thread that
has ended is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread


def start_server(serve: Callable[[Callable[[], None]], None], *, name: str) -> Thread:
    """A thread of this name that runs `serve`, once that has called what it is given: it answers from then on. Raises
    what `serve` raised before."""
    started: Future[None] = Future()

    def run() -> None:
        try:
            serve(lambda: started.set_result(None))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        else:
            if not started.done():
                started.set_exception(RuntimeError(f"{name} ended before it had begun"))

    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        started.result()
    except BaseException:
        if started.done():  # not an interrupt of who waits
            thread.join()
        raise
    return thread
