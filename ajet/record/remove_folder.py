"""Removes folders filled by untrusted code.

Invariant: at most two descriptors are open and no function recurses, so any depth works. Every step is relative to a
descriptor and follows no link; files outside the folder are never removed.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def remove_folder(folder: str | Path) -> None:
    """Remove a folder and all its content, whatever its depth and permissions. What cannot be removed stays."""
    with suppress(OSError):
        with _open_folder(folder, None) as top:
            _empty_folder(top)
        os.rmdir(folder)


def _empty_folder(top: int) -> None:
    """Remove all entries of the folder with the descriptor `top`.

    The subfolders of an entry move up to `top` before the entry goes, so that no depth of folders needs recursion.
    """
    failed_names: set[str] = set()
    name_number = 0
    while names := [name for name in os.listdir(top) if name not in failed_names]:
        for name in names:
            try:
                if not _is_folder(name, top):
                    os.unlink(name, dir_fd=top)
                    continue
                with _open_folder(name, top) as entry:
                    name_number = _lift_subfolders(entry, top, name_number)
                os.rmdir(name, dir_fd=top)
            except OSError:
                failed_names.add(name)


def _lift_subfolders(entry: int, top: int, count: int) -> int:
    """Remove the files of the folder `entry`, and move its subfolders to the folder `top` under free names.

    Args:
        entry: Descriptor of the folder to empty.
        top: Descriptor of its parent.
        count: Number of the last name used in `top`.

    Returns:
        The new number of the last name.
    """
    for name in os.listdir(entry):
        if not _is_folder(name, entry):
            os.unlink(name, dir_fd=entry)
            continue
        with _open_folder(name, entry):  # moving a folder needs the right to write to it
            pass
        while True:
            count += 1
            try:
                os.rename(name, f".removed-{count}", src_dir_fd=entry, dst_dir_fd=top)
                break
            except OSError as error:  # the name is taken, if the code inside chose it too
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
    return count


def _is_folder(name: str, parent: int) -> bool:
    """Return True if the entry of the folder with the descriptor `parent` is a folder itself, not a link to one."""
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


@contextmanager
def _open_folder(path: str | Path, parent: int | None) -> Iterator[int]:
    """Yield a descriptor for listing a folder, also if its owner has no permission to read it.

    Args:
        parent: Descriptor to which the path is relative. None: the working directory.
    """
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    path_descriptor = os.open(path, os.O_PATH | flags, dir_fd=parent)
    try:
        if stat.S_IMODE(os.fstat(path_descriptor).st_mode) & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{path_descriptor}", 0o700)
        descriptor = os.open(".", os.O_RDONLY | flags, dir_fd=path_descriptor)
    finally:
        os.close(path_descriptor)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
