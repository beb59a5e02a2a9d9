"""A file or folder that a person asked a command to write, by an option or by name.

Invariant: what cannot be written there is one sentence that names the option, said before anything is played, judged or
merged for it wherever that can be known; what is there already is not written over unless the caller says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.schema.errors import UserError


def require_place(file: Path, option: str, *, new: bool = True) -> None:
    """Raises UserError where `file` cannot be written: its folder is missing, not permitted or none; it is there
    already (`new`), or is a folder."""
    with written(file, option):  # a name that is too long, a folder that nobody may look into
        _require_place(file, option, new)


def _require_place(file: Path, option: str, new: bool) -> None:
    if new and (file.exists() or file.is_symlink()):
        raise UserError(f"{file} exists already.", where=option, do=f"name another with {option}, or remove it")
    if file.is_dir():
        raise UserError(f"{file} is a folder.", where=option, expected="the name of a file")
    if not file.parent.exists():
        raise UserError(f"There is no folder {file.parent}.", where=option, do="make it, or name a file elsewhere")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is no folder.", where=option, do="name a file elsewhere")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"{file} cannot be written: not permitted.", where=option, do="name a file elsewhere")


def require_folder(folder: Path, option: str) -> None:
    """Raises UserError where the folder cannot be made, or written to if it is there."""
    with written(folder, option):
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not there.is_dir():
            raise NotADirectoryError(f"{there} is no folder")
        if not os.access(there, os.W_OK):
            raise PermissionError("not permitted")


@contextmanager
def written(file: Path, option: str) -> Iterator[None]:
    """Within the block, what the system refuses becomes a UserError."""
    try:
        yield
    except UserError:  # of what is written, and not of the place
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"{file} cannot be written: {why}.", where=option, do="name another place") from error
