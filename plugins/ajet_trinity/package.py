"""Where Trinity-RFT is installed. Nothing of it is imported.

Invariant: one version. Its requirements exclude verl's, and its plug-in breaks any vLLM of ours that finds it, so where
both are in one environment Trinity lies in a folder that only its own processes look into (`ASIDE`).
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from ajet.schema.commands import installs_extra
from ajet.schema.errors import MissingExtra, UserError

VERSION = "0.6.0"
"""The one whose configuration and extension points ours fit."""
DISTRIBUTION = "trinity-rft"
OWN_FOLDER = Path("share") / "trinity"
"""Below the environment: what `make setup` fetches for machines without a GPU."""


def require_trinity() -> Path | None:
    """The folder that its processes have to look into; None where they find it by themselves. Raises MissingExtra
    without it, UserError for another version."""
    folder = Path(sys.prefix) / OWN_FOLDER
    for place in (None, folder):
        found = find_version(place)
        if found is None:
            continue
        if found != VERSION:
            raise UserError(
                f"trinity-rft {found} is installed.",
                where=str(place or sys.prefix),
                expected=f"trinity-rft {VERSION}: its interfaces differ from version to version",
                do=installs_extra("trinity"),
            )
        return place
    raise MissingExtra(DISTRIBUTION, "trinity", needed_for="The trinity backbone")


def find_version(folder: Path | None) -> str | None:
    """Trinity's version in that folder, or where this interpreter looks; None without it."""
    found = (
        metadata.distributions(name=DISTRIBUTION)
        if folder is None
        else metadata.distributions(name=DISTRIBUTION, path=[str(folder)])
    )
    return next((each.version for each in found), None)
