"""How a server that keeps nothing to go on with ends: `ajet deploy` and `ajet observe`.

Invariant: Ctrl-C ends it at once (exit code 130). SIGTERM, by which supervisors end what they started, lets what is
being answered be finished, `GRACE_S` at most, and is exit code 0; a second one, or Ctrl-C, waits for nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from loguru import logger

from ajet.train.interrupts import Interrupts, Preempted

GRACE_S = 20.0
"""For what is being answered when SIGTERM comes; a supervisor kills after 10 to 90."""
_LOOK_S = 0.1


def until_ended(
    interrupts: Interrupts, look: Callable[[], None], idle: Callable[[], bool], *, grace: float = GRACE_S
) -> None:
    """Do `look` again and again, until a signal: answers once `idle` says that nobody is being answered, after SIGTERM.
    Raises KeyboardInterrupt. `look` waits, for a while: Python hears of a signal that comes just before a wait when
    that has ended."""
    try:
        while True:
            look()
            with interrupts.held(whole=False):
                pass  # raises one that Python could not pass on
    except Preempted:
        logger.info("asked to end: what is being answered has {:g} s", grace)
    try:
        wait_for(idle, grace)
    except Preempted:
        logger.info("asked to end again: nothing is waited for")


def wait_for(idle: Callable[[], bool], seconds: float) -> bool:
    """Until it is so, so long at most; whether it is."""
    until = time.monotonic() + seconds
    while not (is_so := idle()) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return is_so
