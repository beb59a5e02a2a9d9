"""Shared parts of `ajet serve`, `ajet observe` and `ajet deploy`: the clients' key, and the end at a signal.

Invariants: a key that is guessable or no valid header value is refused before the server listens. Ctrl-C ends a server
at once (exit code 130). SIGTERM lets open requests finish for `GRACE_S` at most, with exit code 0. A second SIGTERM, or
Ctrl-C, ends the wait.
"""

from __future__ import annotations

import math
import os
import string
import time
from collections.abc import Callable

from loguru import logger

from ajet.schema.errors import UserError
from ajet.train.interrupts import Interrupts, Preempted

KEY_BITS = 128
GRACE_S = 20.0
"""Seconds for open requests after SIGTERM. A supervisor kills after 10 to 90."""
_POLL_S = 0.1


def read_key(variable: str, *, do: str, or_else: str = ", or a .env file") -> str | None:
    """Return the key in the environment variable, or None if the variable is not set.

    Args:
        do: Advice for a user who sets no key.
        or_else: Other places where the key may have been set.

    Raises:
        UserError: The value is no key.
    """
    key = os.environ.get(variable)
    if key is None or (key.isascii() and key.isprintable() and " " not in key and count_bits(key) >= KEY_BITS):
        return key
    raise UserError(
        f"The value of {variable} is not a valid key.",
        where=f"the environment variable {variable}{or_else}",
        expected=f"{KEY_BITS} random bits: 32 hexadecimal digits, or 22 letters and digits, without spaces",
        do=f"{do}; or create a key by `openssl rand -hex 16`",
    )


def count_bits(key: str) -> float:
    """Return the maximum entropy of the key in bits, for the smallest usual alphabet of its characters."""
    alphabets = (string.digits, string.hexdigits[:16], string.ascii_letters + string.digits + "-_")
    letters = next((len(set(alphabet)) for alphabet in alphabets if set(key) <= set(alphabet)), 94)
    return len(key) * math.log2(letters) if len(set(key)) > 7 else 0.0


def serve_until_ended(
    interrupts: Interrupts, wait: Callable[[], None], is_idle: Callable[[], bool], *, grace: float = GRACE_S
) -> None:
    """Call `wait` until a signal. After SIGTERM wait until no request is open, and return.

    Args:
        wait: Waits for a while. Python handles a signal just before a wait only after the wait.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
    """
    try:
        while True:
            wait()
            with interrupts.defer(ends_step=False):
                pass  # raises a signal that Python could not pass on
    except Preempted:
        logger.info("the server stops: open requests have {:g} s to end", grace)
    try:
        deadline = time.monotonic() + grace
        while not is_idle() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    except Preempted:
        logger.info("the server stops at once, because of a second signal")
