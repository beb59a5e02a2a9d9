"""Descriptors of this process alone: what the kernel keeps on one, a lock, ends with this process, however it ends.

Invariant: no program inherits one, and a forked copy of this process closes it at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from ajet.config.record_file import open_record_descriptor

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What `locked` meets on a file system that has no locks."""


class OwnDescriptor:
    """A descriptor that is opened now."""

    def __init__(self, path: Path, flags: int, mode: int = 0o644) -> None:
        """Raises OSError."""
        self._number: int | None = open_record_descriptor(path, flags, mode)
        _open.add(self)

    @property
    def number(self) -> int | None:
        """The descriptor; None: it was closed, or is the parent's."""
        return self._number

    def close(self) -> None:
        """Idempotent."""
        _open.discard(self)
        number, self._number = self._number, None
        if number is not None:
            os.close(number)


def locked(file: OwnDescriptor) -> None:
    """Take the kernel's lock on it. Raises BlockingIOError where another holds it; OSError."""
    assert file.number is not None
    fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlocked(file: OwnDescriptor) -> None:
    """Give it back, for a copy, too, that a fork outside of Python may have made."""
    if file.number is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file.number, fcntl.LOCK_UN)


_open: set[OwnDescriptor] = set()


def _close_all() -> None:
    for each in tuple(_open):
        each.close()


os.register_at_fork(after_in_child=_close_all)
