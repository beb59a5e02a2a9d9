"""Resolves server names.

Invariants: an unknown name is an error with the nearest known name. A disabled server can be selected like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ajet.schema.errors import UserError
from ajet_gaia.catalogue import SERVERS
from ajet_gaia.server import GaiaServer

BY_NAME = {name: server for server in SERVERS for name in (server.name, *server.aliases)}


def selected(names: str | Iterable[str] | None, *, where: str = "") -> tuple[GaiaServer, ...]:
    """Return the servers of these names in order, without repeats; None selects all.

    A text is split at commas, as in the MCP_SERVERS header.

    Args:
        where: place of the names, for errors.

    Raises:
        UserError: a name is unknown.
    """
    if names is None:
        return SERVERS
    given = names.split(",") if isinstance(names, str) else names
    found = [_find_server(name.strip(), where) for name in given if name.strip()]
    return tuple(dict.fromkeys(found))


def _find_server(name: str, where: str) -> GaiaServer:
    if name in BY_NAME:
        return BY_NAME[name]
    near = get_close_matches(name, BY_NAME, n=3)
    raise UserError(
        f"There is no tool server {name}.",
        where=where,
        expected=f"one of {', '.join(near)}" if near else f"one of {', '.join(server.name for server in SERVERS)}",
        do="correct the name; docs/gaia.md lists them",
    )
