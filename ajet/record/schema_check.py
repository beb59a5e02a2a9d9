"""Check of the schema number that each line of a record carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet.schema.episode import SCHEMA
from ajet.schema.errors import UserError


def require_schema(row: Mapping[str, Any]) -> None:
    """Refuse a line that another version of ajet wrote.

    Raises:
        KeyError: The line has no schema number, so it is no line of an episode.
        UserError: The number is not SCHEMA.
    """
    if row["schema"] != SCHEMA:
        raise UserError(
            f"This episode was recorded with schema {row['schema']}; this ajet reads {SCHEMA}.",
            where=f"episode {row.get('uuid', '?')}",
            do="read it with the version of ajet that wrote it",
        )
