"""The key of a server of ours that the person has set: one rule for `ajet serve`, `ajet observe` and `ajet deploy`.

Invariant: what could not stand in a header, or is guessed, is no key; where one is set and is none, nothing listens.
"""

from __future__ import annotations

import math
import os
import string

from ajet.schema.errors import UserError

KEY_BITS = 128


def own_key(variable: str, *, do: str, or_else: str = ", or a .env file") -> str | None:
    """The key in the environment's `variable`; None where it is not set. Raises UserError for one that is no key; `do`:
    what else can be done, `or_else`: where else it may have been set."""
    given = os.environ.get(variable)
    if given is None or (given.isascii() and given.isprintable() and " " not in given and bits(given) >= KEY_BITS):
        return given
    raise UserError(
        f"{variable} is no key.",
        where=f"the environment variable {variable}{or_else}",
        expected=f"{KEY_BITS} random bits: 32 hexadecimal digits, or 22 letters and digits, without spaces",
        do=f"{do}; or make one by `openssl rand -hex 16`",
    )


def bits(key: str) -> float:
    """The bits that the key has at most, drawn from the smallest usual alphabet that holds it."""
    alphabets = (string.digits, string.hexdigits[:16], string.ascii_letters + string.digits + "-_")
    letters = next((len(set(each)) for each in alphabets if set(key) <= set(each)), 94)
    return len(key) * math.log2(letters) if len(set(key)) > 7 else 0.0
