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
    """Return the clients' API key from an environment variable, or None if the variable is not set.

    Args:
        do: Advice on how to set a key, for the error.
        or_else: Other places where the key may have been set.

    Raises:
        UserError: The value is guessable, or an HTTP header cannot carry it.
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
    """Return how many bits of randomness a key of this length has at most, in the smallest usual alphabet."""
    alphabets = (string.digits, string.hexdigits[:16], string.ascii_letters + string.digits + "-_")
    alphabet_size = next((len(set(alphabet)) for alphabet in alphabets if set(key) <= set(alphabet)), 94)
    # Few different characters: a person's choice, such as 1111….
    return len(key) * math.log2(alphabet_size) if len(set(key)) > 7 else 0.0


def serve_until_ended(
    interrupts: Interrupts, wait: Callable[[], None], is_idle: Callable[[], bool], *, grace: float = GRACE_S
) -> None:
    """Serve until a signal. At SIGTERM, wait until no request is open or the grace period ends, and return.

    Args:
        wait: Waits for a short time; called again and again, because Python handles a signal only between calls.
        is_idle: Returns True if no request is open.
        grace: Seconds for open requests after SIGTERM.

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
