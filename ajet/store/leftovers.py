"""What a run's store holds that is nobody's, for `ajet gc`.

Invariant: a store in files has none, since a put there is one transaction, or is mended as the next run opens it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ajet.schema.errors import UserError
from ajet.store.opening import ELSEWHERE, Address, credentials


@dataclass(frozen=True, slots=True)
class Left:
    """The leftovers of killed puts."""

    count: int = 0
    """Episodes, or parts of one."""
    size: int = 0
    """Bytes."""
    why_not: str = ""
    """Why the store could not be looked at."""


def left_in_store(folder: Path, *, remove: bool = False) -> Left:
    """Find the leftovers in the store of the run that is recorded in `folder`; `remove`: remove them, too."""
    named = folder / ELSEWHERE
    address = named.read_text().strip() if named.exists() else ""
    if not address.startswith("mongodb"):
        return Left()
    try:
        return _in_mongodb(Address.of(address), remove=remove)
    except UserError as error:
        return Left(why_not=error.what)


def _in_mongodb(address: Address, *, remove: bool) -> Left:
    from ajet.store.mongo.leftovers import Leftovers

    there = Leftovers(address.uri, address.database, credentials())
    try:
        unnamed, without = there.found()
        left = Left(len(unnamed) + len(without), there.size([*unnamed, *without]))
        if remove:
            there.remove(unnamed, without)
        return left
    finally:
        there.close()
