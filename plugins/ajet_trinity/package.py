"""Finds the installation of Trinity-RFT without importing it.

Invariant: a single version is supported. Trinity's requirements exclude verl's, and its plug-in breaks vLLM in ajet's
environment. In a shared environment Trinity therefore lies in a folder used only by its own processes (`OWN_FOLDER`).
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from ajet.schema.commands import format_extra_install
from ajet.schema.errors import MissingExtraError, UserError

VERSION = "0.6.0"
"""The version matching ajet's configuration and extension points."""
DISTRIBUTION = "trinity-rft"
OWN_FOLDER = Path("share") / "trinity"
"""Trinity's folder below the Python environment, filled by `make setup` for machines without a GPU."""


def require_trinity() -> Path | None:
    """Return the folder that Trinity's processes need in their import path, or None if they need none.

    Raises:
        MissingExtraError: Trinity is not installed.
        UserError: another version is installed.
    """
    folder = Path(sys.prefix) / OWN_FOLDER
    for environment in (None, folder):
        version = find_version(environment)
        if version is None:
            continue
        if version != VERSION:
            raise UserError(
                f"trinity-rft {version} is installed.",
                where=str(environment or sys.prefix),
                expected=f"trinity-rft {VERSION}: its interfaces differ between versions",
                do=format_extra_install("trinity"),
            )
        return environment
    raise MissingExtraError(DISTRIBUTION, "trinity", needed_for="The trinity backbone")


def find_version(folder: Path | None) -> str | None:
    """Return the version of the installed Trinity, or None if it is missing.

    Args:
        folder: folder to search, or None for the import path of this interpreter.
    """
    distributions = (
        metadata.distributions(name=DISTRIBUTION)
        if folder is None
        else metadata.distributions(name=DISTRIBUTION, path=[str(folder)])
    )
    return next((distribution.version for distribution in distributions), None)
