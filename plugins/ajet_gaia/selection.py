"""Names to servers.

Invariant: a name that stands in no table is an error that names the nearest one; a server that is off is selected like
any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ajet.schema.errors import UserError
from ajet_gaia.catalogue import SERVERS
from ajet_gaia.server import GaiaServer

BY_NAME = {name: server for server in SERVERS for name in (server.name, *server.aliases)}


def selected(names: str | Iterable[str] | None, *, where: str = "") -> tuple[GaiaServer, ...]:
    """The servers of these names, each once, in their order; a text is split at commas, as the MCP_SERVERS header has
    it; None: all. Raises UserError for a name that is in no table; `where` says where it stands."""
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
