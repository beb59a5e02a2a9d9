"""Landlock rules for shown project folders: only files that existed at the start, without keys, can be opened.

An empty file mounted over a key file disappears when the key file is replaced outside, and later files have no mount.
So each file that may be opened gets its own rule, and a file without a rule cannot be opened. Invariant: rules refer to
files, not to names, and links are never followed.
"""

from __future__ import annotations

import os

from ajet_sandbox.inside import kernel
from ajet_sandbox.inside.file_rule import is_lock, is_secret, walk_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

LEAST_ABI = 2
"""Required version of Landlock (Linux 5.19); earlier versions deny every rename between folders."""


def restrict_opening(projects: Collection[str]) -> None:
    """Restrict this process and its children to files that exist now. Does nothing without Landlock.

    Args:
        projects: folders with one rule per file, and single files. All files elsewhere can be opened.
    """
    if not projects or kernel.read_landlock_version() < LEAST_ABI:
        return
    ruleset = kernel.create_ruleset(kernel.READ_FILE | kernel.REFER)
    try:
        for path in _open_folders("/", projects):
            _allow_path(ruleset, path, kernel.READ_FILE | (kernel.REFER if os.path.isdir(path) else 0))
        for top in projects:
            if os.path.isdir(top):
                _allow_files(ruleset, top)
            else:
                _allow_path(ruleset, top, kernel.READ_FILE)
        kernel.enforce_ruleset(ruleset)
    finally:
        os.close(ruleset)


def _open_folders(folder: str, projects: Collection[str]) -> Iterator[str]:
    """Yield the paths below `folder` that contain no project and are no part of one."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if path in projects or os.path.islink(path):
            continue
        if any(project.startswith(f"{path}/") for project in projects):
            yield from _open_folders(path, projects)
        else:
            yield path


def _allow_files(ruleset: int, top: str) -> None:
    """Allow reading the project's files, except secret files and lock files.

    Another name (hard link) of a secret file or lock file is not allowed either. Folders of git and installed packages
    are allowed as a whole.
    """
    files: list[tuple[int, os.DirEntry[str]]] = []
    secret_inodes: set[tuple[int, int]] = set()
    for listing in walk_project(top):
        for entry in listing.foreign:
            _allow_path(ruleset, entry.path, kernel.READ_FILE)
        device = os.stat(listing.path).st_dev
        for entry in listing.files:
            if not (is_secret(entry.name) or is_lock(entry.name)):
                files.append((device, entry))
            elif not _allow_cover(ruleset, entry.path, device):
                secret_inodes.add((device, entry.inode()))
    for device, entry in files:
        if not secret_inodes or (device, entry.inode()) not in secret_inodes:
            _allow_path(ruleset, entry.path, kernel.READ_FILE)


def _allow_cover(ruleset: int, path: str, device: int) -> bool:
    """Allow an empty file that is mounted over a secret file or lock file.

    Args:
        device: device of the folder; a mounted file lies on another device.

    Returns:
        True if the path is such a cover (or has vanished), False if it is the project's own file, which stays
        forbidden.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True  # it has just gone
    try:
        status = os.fstat(descriptor)
        is_cover = status.st_size == 0 and status.st_dev != device
        if is_cover:
            kernel.add_rule(ruleset, descriptor, kernel.READ_FILE)
        return is_cover
    finally:
        os.close(descriptor)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    """Allow a file, or all files below a folder. A link is allowed without its target, and so opens no file."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # it has just gone, or this user cannot go there
    try:
        kernel.add_rule(ruleset, descriptor, rights)
    finally:
        os.close(descriptor)
