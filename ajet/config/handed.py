"""Where the configuration is handed its catalogue, by who stands above all rooms (`ajet/__init__.py`): so it is done in
every process, for commands, runs and workers alike.

Invariant: the tables are made when somebody asks first. `import ajet` reads this file, which imports nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ajet.config.catalogue import Catalogue

_handed: list[Callable[[], Catalogue]] = []
_found: list[Catalogue] = []


def hand_down(find: Callable[[], Catalogue]) -> None:
    """Make the catalogue that `find` gives known from here on."""
    _handed[:] = [find]
    _found.clear()


def known() -> Catalogue:
    """The parts that have a name."""
    if not _found:
        _found[:] = [_handed[0]()]
    return _found[0]
