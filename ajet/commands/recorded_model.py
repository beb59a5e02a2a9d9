"""The model that a record names, for those who need it: taken where it lies, fetched only with the person's word.

Invariant: what a record names is never fetched or converted unasked. The question says what and from where; without a
terminal, and without --fetch, it is a UserError that says the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ajet.engine.model_source import at_hand, how_it_comes, locate
from ajet.engine.models import folder_of
from ajet.record.console import console
from ajet.schema.errors import UserError


def recorded_model(
    path: str, *, base: Path, record: Path, fetch: bool, weights: bool = True, otherwise: str = ""
) -> Path:
    """The folder of the model `path` that the run in `record` names, with its `weights` where those are needed.
    `otherwise`: what can be done without it. Raises UserError where it is not here and may not be fetched."""
    found = at_hand(path, base=base, weights=weights)
    if found is not None:
        return found
    how = how_it_comes(path, base=base)
    if not fetch and not _allowed(path, how):
        raise UserError(
            f"The record names the model {path!r}, which is not on this machine: {how}.",
            where=str(record),
            expected="a model that is here, or your word",
            do="--fetch gets it, if you trust where the record comes from" + (f"; {otherwise}" if otherwise else ""),
        )
    return folder_of(locate(path, base=base, weights=weights))


def _allowed(path: str, how: str) -> bool:
    """The person's answer; False where nobody can be asked."""
    if not (sys.stdin.isatty() and console.is_terminal):
        return False
    console.print(f"The record names the model {path!r}, which is not here: {how}.", markup=False, soft_wrap=True)
    try:
        return console.input("Fetch it? [y/N] ", markup=False).strip().lower() in ("y", "yes")
    except EOFError:
        return False
