"""What a run's store holds that is nobody's, for `ajet gc`; how it is found is the driver's."""

from __future__ import annotations

from pathlib import Path

from ajet.config.plugins import find_shared_store
from ajet.schema.errors import UserError
from ajet.store.opening import ELSEWHERE, Address, Left, find_driver


def left_in_store(folder: Path, *, remove: bool = False) -> Left:
    """Find the leftovers in the store of the run that is recorded in `folder`; `remove`: remove them, too."""
    named = folder / ELSEWHERE
    address = named.read_text().strip() if named.exists() else ""
    if find_shared_store(address.partition(":")[0]) is None:  # the user's own store, or none
        return Left()
    try:
        found = Address.of(address)
        return find_driver(found).find_leftovers(found, remove=remove)
    except UserError as error:
        return Left(why_not=error.what)
