"""Reads and writes files in a sandbox's working folder by a descriptor, safe against concurrent code inside.

Invariant: no path leads out of the folder, whatever code inside creates meanwhile. Links are refused at every step (by
openat2 if the kernel has it, else step by step). Only regular files are read, up to the requested length.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from contextlib import contextmanager

TYPE_CHECKING = False  # importing `typing` takes longer than a call
if TYPE_CHECKING:
    from collections.abc import Iterator

_OPENAT2 = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OUTSIDE = {errno.ELOOP, errno.EXDEV, errno.ENOTDIR}


class PathEscapeError(Exception):
    """The path leads out of the folder, or to a special file."""


class SandboxFolder:
    """A folder opened by descriptor. Raises OSError, PathEscapeError."""

    def __init__(self, number: int, owner: int | None) -> None:
        """Take over the open folder `number` (a descriptor).

        Args:
            owner: user and group id of new files; None for those of this process.
        """
        self._descriptor, self._owner = number, owner

    def read(self, path: str, longest: int) -> bytes:
        """Return the first bytes of a file, at most `longest`."""
        with self._open_file(_split_path(path), os.O_RDONLY | os.O_NONBLOCK) as number:
            found = bytearray()
            while len(found) < longest and (more := os.read(number, min(longest - len(found), 1 << 20))):
                found += more
            return bytes(found)

    def put(self, path: str, content: bytes) -> None:
        """Write a file and missing parent folders."""
        parts = _split_path(path)
        for depth in range(1, len(parts)):
            self._make_folder(parts[:depth])
        with self._open_file(parts, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK) as number:
            if self._owner is not None:
                os.fchown(number, self._owner, self._owner)
            os.ftruncate(number, 0)
            view = memoryview(content)
            while view:
                view = view[os.write(number, view) :]

    def close(self) -> None:
        """Close the folder's descriptor. Calls are idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _make_folder(self, parts: tuple[str, ...]) -> None:
        with self._open_folder(parts[:-1]) as above:
            try:
                os.mkdir(parts[-1], 0o755, dir_fd=above)
            except FileExistsError:
                return
            if self._owner is not None:
                os.chown(parts[-1], self._owner, self._owner, dir_fd=above, follow_symlinks=False)

    @contextmanager
    def _open_file(self, parts: tuple[str, ...], flags: int) -> Iterator[int]:
        with self._open_folder(parts[:-1]) as above:
            number = _open_step(above, parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, parts)
        try:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise PathEscapeError(f"{'/'.join(parts)} is no regular file")
            yield number
        finally:
            os.close(number)

    @contextmanager
    def _open_folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        here = os.dup(self._descriptor)
        try:
            for part in parts:
                below = _open_step(here, part, _FOLDER, parts)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def _open_step(above: int, name: str, flags: int, parts: tuple[str, ...]) -> int:
    try:
        return _open_beneath(above, name, flags)
    except OSError as error:
        if error.errno in _OUTSIDE or _is_link(above, name):
            raise PathEscapeError(f"{'/'.join(parts)} leads over a link or a file") from error
        raise


def _is_link(above: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _open_beneath(above: int, name: str, flags: int) -> int:
    """Open one step of a path inside the folder `above`, without following links.

    Without openat2 (kernels before 5.6, or a filter) O_NOFOLLOW suffices, since `name` has no slash.
    """
    mode = 0o644 if flags & os.O_CREAT else 0
    how = struct.pack("QQQ", flags, mode, _NO_SYMLINKS | _BENEATH)
    libc = ctypes.CDLL(None, use_errno=True)
    number: int = libc.syscall(ctypes.c_long(_OPENAT2), above, os.fsencode(name), how, ctypes.c_size_t(len(how)))
    if number >= 0:
        return number
    problem = ctypes.get_errno()
    if problem in (errno.ENOSYS, errno.EPERM):
        return os.open(name, flags, 0o644, dir_fd=above)
    raise OSError(problem, os.strerror(problem), name)


def _split_path(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if path.startswith("/") or not parts or ".." in parts or "\0" in path:
        raise PathEscapeError(f"{path!r} is no path within the working folder")
    return parts
