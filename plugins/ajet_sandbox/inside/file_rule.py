"""Decides by name which files of a shown project folder code inside may open: all but keys and locks.

Invariant: the rule depends on names alone, so the host and the program inside decide equally. Lock files are closed
too, since `flock` and `fcntl` lock through a read-only file.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing `typing` takes longer than the rest
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

RECORDS = "launcher_record"
"""The default folder of runs."""
_RUN_FILES = frozenset({"run.json", "status.json", "resolved.yaml", "lock.json", "chain.jsonl"})
"""Files of a run's folder besides its lock. A folder with only a lock is no record: uv puts one into `.venv`."""
_FOREIGN_FOLDERS = frozenset({".git", "node_modules", "__pycache__"})
_ENVIRONMENT_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})
ENVIRONMENT_FOLDERS = frozenset({"bin", "conda-meta", "include", "lib", "lib64", "share"})
"""Folders of a Python environment, next to one of the marks."""


def is_secret(name: str) -> bool:
    """True for `.env` files, except an example file without secrets."""
    return name.startswith(".env") and name != ".env.example"


def is_lock(name: str) -> bool:
    """True for the lock file of a run, and for the file that SQLite locks while a database is open."""
    return name == ".lock" or name.endswith("-shm")


def is_record(name: str, names: Collection[str]) -> bool:
    """True for the output folder of a run, or of all runs.

    Args:
        names: entries of the folder.
    """
    if not _ENVIRONMENT_MARKS.isdisjoint(names):
        return False
    return name == RECORDS or (".lock" in names and not _RUN_FILES.isdisjoint(names))


class ProjectListing:
    """One folder of a project: its files and links, and subfolders that are not searched."""

    __slots__ = ("files", "foreign", "is_hidden", "path")

    def __init__(self, path: str, entries: list[os.DirEntry[str]], *, is_hidden: bool) -> None:
        """Sort the entries of a folder into files and folders that are not searched.

        Args:
            path: the folder.
            entries: its entries; empty for a hidden folder.
            is_hidden: True for the output folder of a run.
        """
        self.path, self.is_hidden = path, is_hidden
        self.files: list[os.DirEntry[str]] = []
        self.foreign: list[os.DirEntry[str]] = []
        marked = any(entry.name in _ENVIRONMENT_MARKS for entry in entries)
        foreign = _FOREIGN_FOLDERS | ENVIRONMENT_FOLDERS if marked else _FOREIGN_FOLDERS
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                self.files.append(entry)
            elif entry.name in foreign:
                self.foreign.append(entry)


def walk_project(top: str) -> Iterator[ProjectListing]:
    """Yield a listing of each folder below `top`, and of `top` itself.

    The output folder of a run is yielded without entries. Folders of git and of installed packages are not entered.
    """
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError:
            continue  # no process inside can list the folder either
        if folder != top and is_record(os.path.basename(folder), {entry.name for entry in entries}):
            yield ProjectListing(folder, [], is_hidden=True)
            continue
        listing = ProjectListing(folder, entries, is_hidden=False)
        yield listing
        not_walked = {entry.name for entry in (*listing.files, *listing.foreign)}
        pending += [entry.path for entry in entries if entry.name not in not_walked]
