"""The key of a server of ours that the person has set.

Invariant: what could not stand in a header, or is guessed, is no key; where one is set and is none, nothing listens.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ajet.schema.errors import UserError


def own_key(
    variable: str, enough: Callable[[str], bool], *, expected: str, do: str, or_else: str = ", or a .env file"
) -> str | None:
    """That of the environment's `variable`; None where it is not set. `enough`: whether one is long enough. Raises
    UserError for one that is no key; `or_else`: where else it may have been set."""
    given = os.environ.get(variable)
    if given is None or (given.isascii() and given.isprintable() and " " not in given and enough(given)):
        return given
    raise UserError(
        f"{variable} is no key.", where=f"the environment variable {variable}{or_else}", expected=expected, do=do
    )


def long_enough(key: str) -> bool:
    """Where guesses are slow, and the person chose it."""
    return len(key) >= 16
