"""Server thread: starts a serving thread and waits until the server answers.

Invariant: the starter never waits for a dead thread. Either the server answers, or the startup error is raised in the
starter.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread


def start_server(serve: Callable[[Callable[[], None]], None], *, name: str) -> Thread:
    """Start a thread that runs `serve`, and return it once `serve` calls its argument. Raises startup errors of
    `serve`.
    """
    started: Future[None] = Future()

    def run() -> None:
        """Serve in the new thread. An error before the start is passed to the starter, a later one is raised here."""
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
        if started.done():  # False for an interrupt of the waiting thread
            thread.join()
        raise
    return thread
