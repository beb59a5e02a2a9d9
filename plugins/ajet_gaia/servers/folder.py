"""Folder: access to files below a folder only.

Invariants: a path is walked component by component with `O_NOFOLLOW`. Neither `..` nor a symbolic link, even a link
created between check and use, leads out of the folder. Only regular files are opened, so a pipe or a device created by
the model cannot block the server. All other modules open files of the working folder through this class, except for
SQLite, which accepts a path only (`sqlite`).
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .settings import Settings
from .tool import ToolError

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LINK = "a symbolic link; links are not followed"


@dataclass(frozen=True)
class Entry:
    """One name in a folder, with its kind."""

    name: str
    kind: str
    """One of file, directory, link or other."""
    size: int
    modified: float
    mode: int = 0


class Folder:
    """A working folder, with further readable folders."""

    def __init__(self, settings: Settings) -> None:
        self.root = Path(os.path.abspath(settings.root))
        self.readable = tuple(Path(os.path.abspath(folder)) for folder in settings.readable)

    def parts(self, path: str, *, write: bool = False) -> tuple[Path, tuple[str, ...]]:
        """Split a path into its root folder and the components below it, without touching the file system.

        Args:
            path: absolute, or relative to the working folder; "~" is the home folder.
            write: True to allow only the working folder, not the other readable folders.

        Raises:
            ToolError: the path lies outside of the allowed folders.
        """
        if "\0" in path:
            raise ToolError("the path contains a zero byte; remove it")
        full_path = os.path.normpath(os.path.join(self.root, os.path.expanduser(path) if path == "~" else path))
        for root in (self.root, *(() if write else self.readable)):
            if full_path == str(root):
                return root, ()
            if full_path.startswith(f"{root}{os.sep}".replace("//", "/")):
                return root, Path(os.path.relpath(full_path, root)).parts
        folders = ", ".join(str(root) for root in (self.root, *self.readable))
        raise ToolError(f"{path} lies outside of {folders}")

    def shown(self, path: str) -> str:
        """Return a path as shown in answers: relative if below the working folder."""
        root, parts = self.parts(path)
        return os.path.join(*parts) if root == self.root and parts else str(root.joinpath(*parts))

    @contextmanager
    def directory(self, path: str, *, write: bool = False, create: bool = False) -> Iterator[int]:
        """Open a directory and yield its descriptor within the block.

        Args:
            write: True to allow only the working folder.
            create: True to create the directory and its parents.
        """
        root, parts = self.parts(path, write=write)
        with _walk_path(root, parts, path, create=create) as descriptor:
            yield descriptor

    @contextmanager
    def parent(self, path: str, *, write: bool = True, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory of a path, and yield (its descriptor, last component of the path) within the block.

        Args:
            write: True to allow only the working folder.
            create: True to create the directory and its parents.
        """
        root, parts = self.parts(path, write=write)
        if not parts:
            raise ToolError(f"{path} is the folder itself")
        with _walk_path(root, parts[:-1], path, create=create) as descriptor:
            yield descriptor, parts[-1]

    def read(self, path: str) -> BinaryIO:
        """Open a regular file for reading in binary mode. Raises ToolError if it is missing or no regular file."""
        return os.fdopen(self._open_file(path, os.O_RDONLY), "rb")

    def read_bytes(self, path: str, limit: int) -> bytes:
        """Return a file's content; a file larger than `limit` bytes is refused."""
        with self.read(path) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ToolError(f"{path} has more than {limit} bytes")
        return data

    def write(self, path: str, data: bytes, *, append: bool = False, new: bool = False) -> None:
        """Write a complete file and create its directories; with `new` only if no such file exists."""
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else 0) | (os.O_EXCL if new else 0)
        with os.fdopen(self._open_file(path, flags, create=True), "wb") as file:
            if not append:
                file.truncate(0)
            file.write(data)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a path for a program's temporary file, in a separate directory removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="tool-") as directory:
            yield Path(directory, "file")

    def entries(self, path: str) -> list[Entry]:
        """Return the entries of a directory, sorted by name."""
        with self.directory(path) as descriptor:
            return [self._stat_entry(descriptor, name) for name in sorted(os.listdir(descriptor))]

    def entry(self, path: str) -> Entry:
        """Return kind and metadata of a path."""
        root, parts = self.parts(path)
        if not parts:
            status = os.stat(root)
            return Entry(str(root), "directory", status.st_size, status.st_mtime, status.st_mode)
        with self.parent(path, write=False) as (descriptor, name):
            try:
                return self._stat_entry(descriptor, name)
            except FileNotFoundError:
                raise ToolError(f"there is no {path}") from None

    def _stat_entry(self, descriptor: int, name: str) -> Entry:
        """Return kind and metadata of a name in an open directory; a symbolic link is not followed."""
        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
        kind = next((kind_name for is_kind, kind_name in kinds if is_kind(status.st_mode)), "other")
        return Entry(name, kind, status.st_size, status.st_mtime, status.st_mode)

    def _open_file(self, path: str, flags: int, *, create: bool = False) -> int:
        """Open a regular file by its path and return the descriptor.

        `O_NONBLOCK` keeps the open call from waiting for the other end of a pipe, before the kind of file is checked.

        Args:
            flags: flags of os.open; with O_WRONLY only the working folder is allowed.
            create: True to create the parent directories.

        Raises:
            ToolError: the file cannot be opened, or is no regular file.
        """
        write = bool(flags & os.O_WRONLY)
        with self.parent(path, write=write, create=create) as (descriptor, name):
            try:
                file_descriptor = os.open(
                    name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=descriptor
                )
            except OSError as error:
                raise ToolError(_explain_error(error, path)) from None
        if not stat.S_ISREG(os.fstat(file_descriptor).st_mode):
            os.close(file_descriptor)
            raise ToolError(f"{path} is no regular file")
        os.set_blocking(file_descriptor, True)
        return file_descriptor


@contextmanager
def _walk_path(root: Path, parts: Sequence[str], path: str, *, create: bool) -> Iterator[int]:
    """Open a directory component by component, without following links, and yield its descriptor.

    Args:
        path: the path as the caller wrote it, for errors.
        create: True to create missing directories.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for component in parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(component, dir_fd=descriptor)
            try:
                child = os.open(component, DIRECTORY, dir_fd=descriptor)
            except OSError as error:
                raise ToolError(_explain_error(error, path)) from None
            os.close(descriptor)
            descriptor = child
        yield descriptor
    finally:
        os.close(descriptor)


def _explain_error(error: OSError, path: str) -> str:
    """Return an error of the operating system as a sentence about the path."""
    if error.errno == errno.ELOOP:
        return f"{path} is {LINK}"
    if error.errno == errno.ENOTDIR:
        return f"{path} passes through something that is no directory, or {LINK}"
    if error.errno == errno.ENOENT:
        return f"there is no {path}"
    if error.errno == errno.EEXIST:
        return f"{path} is there already"
    return f"{path}: {error.strerror}"
