"""Find TRL without importing it.

Invariant: TRL has one supported version, and verl's processes never find it: verl patches a class which this version of
TRL does not have. So TRL is installed in a folder (`TRL_FOLDER`) used only by the trainer's process, or in an
environment without verl.
"""

from __future__ import annotations

import shlex
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ajet.schema.commands import format_install
from ajet.schema.errors import UserError

VERSION = "1.16.0"
"""The supported version of TRL."""
TRL_FOLDER = Path("share") / "trl"
"""Folder below the environment; `make setup` installs TRL there."""


def require_trl() -> Path | None:
    """Return the folder to add to the trainer's path; None if TRL is installed. Raises UserError without TRL, for
    another version, or with verl in the same environment."""
    folder = Path(sys.prefix) / TRL_FOLDER
    brings = f"{format_install(f'trl=={VERSION}')} --no-deps --target {shlex.quote(str(folder))}"
    installed, separate = find_version(None), find_version(folder)
    if installed is not None and find_spec("verl") is not None:
        raise UserError(
            f"trl {installed} is installed in the same environment as verl.",
            where=sys.prefix,
            expected="a separate environment: verl 0.9.1 patches a class of any trl that it finds, and newer versions "
            "of trl do not have it",
            do=f"uninstall trl, and install it in its separate folder: {brings}",
        )
    found = installed or separate
    if found is None:
        raise UserError("The train engine trl needs the package trl, which is not installed.", do=brings)
    if found != VERSION:
        raise UserError(
            f"trl {found} is installed.",
            where=str(sys.prefix if installed else folder),
            expected=f"trl {VERSION}: the adapter uses an experimental interface of its trainer",
            do=format_install(f"trl=={VERSION}") if installed else brings,
        )
    return None if installed else folder


def find_version(folder: Path | None) -> str | None:
    places = (
        metadata.distributions(name="trl") if folder is None else metadata.distributions(name="trl", path=[str(folder)])
    )
    return next((each.version for each in places), None)
