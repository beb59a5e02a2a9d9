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
        with self._open_file(_split_path(path), os.O_RDONLY | os.O_NONBLOCK) as descriptor:
            content = bytearray()
            while len(content) < longest and (chunk := os.read(descriptor, min(longest - len(content), 1 << 20))):
                content += chunk
            return bytes(content)

    def put(self, path: str, content: bytes) -> None:
        """Write a file and missing parent folders."""
        parts = _split_path(path)
        for depth in range(1, len(parts)):
            self._make_folder(parts[:depth])
        with self._open_file(parts, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK) as descriptor:
            if self._owner is not None:
                os.fchown(descriptor, self._owner, self._owner)
            os.ftruncate(descriptor, 0)
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]

    def close(self) -> None:
        """Close the folder's descriptor. Calls are idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _make_folder(self, parts: tuple[str, ...]) -> None:
        """Create a folder below existing parents, for the owner; an existing one stays."""
        with self._open_folder(parts[:-1]) as parent_fd:
            try:
                os.mkdir(parts[-1], 0o755, dir_fd=parent_fd)
            except FileExistsError:
                return
            if self._owner is not None:
                os.chown(parts[-1], self._owner, self._owner, dir_fd=parent_fd, follow_symlinks=False)

    @contextmanager
    def _open_file(self, parts: tuple[str, ...], flags: int) -> Iterator[int]:
        """Open a regular file without following links, and yield its descriptor within the block.

        Raises:
            PathEscapeError: a component is a link, or the file is no regular file.
        """
        with self._open_folder(parts[:-1]) as parent_fd:
            descriptor = _open_step(parent_fd, parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, parts)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PathEscapeError(f"{'/'.join(parts)} is no regular file")
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _open_folder(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Open a folder step by step without following links, and yield its descriptor within the block."""
        descriptor = os.dup(self._descriptor)
        try:
            for component in parts:
                child = _open_step(descriptor, component, _FOLDER, parts)
                os.close(descriptor)
                descriptor = child
            yield descriptor
        finally:
            os.close(descriptor)


def _open_step(parent_fd: int, name: str, flags: int, parts: tuple[str, ...]) -> int:
    """Open one name inside the open folder `parent_fd`, and return the descriptor.

    Args:
        parts: the complete path, for the error.

    Raises:
        PathEscapeError: the name is a link, or leads out of the folder.
        OSError: any other failure.
    """
    try:
        return _open_beneath(parent_fd, name, flags)
    except OSError as error:
        if error.errno in _OUTSIDE or _is_link(parent_fd, name):
            raise PathEscapeError(f"{'/'.join(parts)} leads over a link or a file") from error
        raise


def _is_link(parent_fd: int, name: str) -> bool:
    """Return True if the name in the open folder is a symbolic link."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _open_beneath(parent_fd: int, name: str, flags: int) -> int:
    """Open one step of a path inside the open folder `parent_fd`, without following links. Raises OSError.

    Without openat2 (kernels before 5.6, or a filter) O_NOFOLLOW suffices, since `name` has no slash.
    """
    mode = 0o644 if flags & os.O_CREAT else 0
    open_how = struct.pack("QQQ", flags, mode, _NO_SYMLINKS | _BENEATH)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        ctypes.c_long(_OPENAT2), parent_fd, os.fsencode(name), open_how, ctypes.c_size_t(len(open_how))
    )
    if descriptor >= 0:
        return descriptor
    error_number = ctypes.get_errno()
    if error_number in (errno.ENOSYS, errno.EPERM):
        return os.open(name, flags, 0o644, dir_fd=parent_fd)
    raise OSError(error_number, os.strerror(error_number), name)


def _split_path(path: str) -> tuple[str, ...]:
    """Return the components of a relative path. Raises PathEscapeError for an absolute path, or one with `..`."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if path.startswith("/") or not parts or ".." in parts or "\0" in path:
        raise PathEscapeError(f"{path!r} is no path within the working folder")
    return parts
