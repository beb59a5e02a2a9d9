"""Temporary folders that are removed even if the creating process was killed.

Invariant: the creator removes a folder; if the creator was killed, the next process of the same user that creates a
folder of the same kind removes it. A kernel lock on a file in the folder shows whether the creator lives, and ends with
the process. Folders of other users are never read.
"""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, lock_descriptor

from ajet.config.record_file import open_record_descriptor
from ajet.record.lock import acquire_lock, open_lock, release_lock
from ajet.record.remove_folder import remove_folder

LOCK = ".held"


class HeldFolder:
    """A temporary folder that is removed even if the creating process was killed. `remove` is thread-safe."""

    def __init__(self, kind: str, place: str | None = None, *, mode: int = 0o700) -> None:
        """Create and lock the folder. Raises OSError.

        Args:
            kind: Prefix of the folder's name.
            place: Parent folder. None: the system's folder for temporary files.
            mode: Permissions of the folder.
        """
        place = place or tempfile.gettempdir()
        remove_abandoned_folders(kind, place)
        self.path = Path(tempfile.mkdtemp(prefix=kind, dir=place))
        self._lock: FileLock | None = None
        try:
            self.path.chmod(mode)
            unheld_lock = self.path / f"{LOCK}~"
            self._lock = open_lock(unheld_lock, 0o600)
            # Without support for locks there is no lock file, and a killed creator's folder is never removed.
            if acquire_lock(self._lock) is None:
                unheld_lock.rename(self.path / LOCK)  # renamed once held, so no process takes the folder for abandoned
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder with its content, and release its lock. Idempotent."""
        remove_folder(self.path)
        if self._lock is not None:
            release_lock(self._lock)


def make_workdir(root: Path, name: str, uid: int | None) -> Path:
    """Create the empty folder `root`/`name`, and give it to the user `uid` unless None. Return its path."""
    folder = root / name
    folder.mkdir(mode=0o700)
    if uid is not None:
        os.chown(folder, uid, uid)
    return folder


@lru_cache(maxsize=64)
def remove_abandoned_folders(kind: str, place: str) -> None:
    """Remove folders whose creators were killed. Further calls with the same arguments do nothing in this process.

    Args:
        kind: Prefix of the folders' names.
        place: Their parent folder.
    """
    for folder in Path(place).glob(f"{kind}*"):
        try:
            descriptor = open_record_descriptor(folder / LOCK, os.O_RDWR)
        except OSError:
            continue  # the folder is being created, or belongs to another user
        try:
            if folder.stat().st_uid == os.geteuid() and lock_descriptor(descriptor, blocking=False):
                remove_folder(folder)  # its maker holds no lock any more
        except OSError:
            continue
        finally:
            os.close(descriptor)
