"""Signs of life: what a process says to a store again and again while its own thread is busy.

Invariant: who is busy with one thing for long enough to be taken for dead says that it lives; who hangs is not said to
live for ever.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from loguru import logger

from ajet.store.contract import TRANSIENT_ERRORS, LeaseLostError

THREAD = "ajet-lives"
LONGEST_JOIN = 5.0
"""Seconds."""


@contextmanager
def signs_of_life(
    say: Callable[[], object], every: float, *, longest: float = math.inf, silent: str = ""
) -> Iterator[None]:
    """Within the block a thread says so, each so many seconds, for `longest` at most: then it warns of `silent`. What
    it finds lost, or can't ask for, is found again by whatever follows the block."""
    over, until = threading.Event(), time.monotonic() + longest

    def repeat() -> None:
        while not over.wait(every):
            if time.monotonic() > until:
                logger.warning("{}", silent)
                return
            with suppress(LeaseLostError, *TRANSIENT_ERRORS):
                say()

    thread = threading.Thread(target=repeat, name=THREAD, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=LONGEST_JOIN)  # it may wait for a store that is out of reach
