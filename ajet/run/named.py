"""The run that a person means: by its folder, or by its name below the record.

Invariant: a folder that holds what is looked for is taken before a name.
"""

from __future__ import annotations

from pathlib import Path

from ajet.schema.errors import UserError


def run_folder(named: str, root: Path, *, holding: str) -> Path:
    """`named` itself if it is a folder with `holding` in it, else the run of that name below `root`, be it there or
    not."""
    return Path(named) if Path(named, holding).exists() else root / named


def known_run(named: str, root: Path, *, holding: str, expected: str) -> Path:
    """The same where it is there. Raises UserError; `expected`: what holds `holding`, in words."""
    folder = run_folder(named, root, holding=holding)
    if (folder / holding).exists():
        return folder
    raise UserError(f"There is no run named {named}.", where=str(folder), expected=expected, do="ajet runs lists them")
