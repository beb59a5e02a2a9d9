"""Heartbeats of a process to a store while the thread that holds leases is busy.

Invariant: a busy process renews its leases; a hanging process stops renewing them after a limit.
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
LONGEST_JOIN = 5.0  # seconds


@contextmanager
def signs_of_life(
    say: Callable[[], object], every: float, *, longest: float = math.inf, silent: str = ""
) -> Iterator[None]:
    """Call `say` in a thread within the block, so that the store keeps seeing this process as alive.

    Lost leases and store errors are ignored, because the code after the block meets the same errors.

    Args:
        say: sends a heartbeat, or renews leases.
        every: seconds between two calls.
        longest: seconds after which the calls end, even if the block still runs: it may hang.
        silent: warning to log when the calls end for that reason.
    """
    ended, deadline = threading.Event(), time.monotonic() + longest

    def repeat() -> None:
        """Call `say` until the block ends, or for `longest` seconds."""
        while not ended.wait(every):
            if time.monotonic() > deadline:
                logger.warning("{}", silent)
                return
            with suppress(LeaseLostError, *TRANSIENT_ERRORS):
                say()

    thread = threading.Thread(target=repeat, name=THREAD, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=LONGEST_JOIN)  # the thread may wait for an unreachable store
