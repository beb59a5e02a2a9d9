"""Opens files of a record (the folder of an earlier run), which another person may have written.

All file access to records is in this module. Invariant: a run's folder may be reached through links, as named by the
user. Below the folder no link is followed, and only regular files of a plausible size are opened. A record therefore
cannot make its reader read or replace an outside file, or block. All opens are relative to descriptors: swapping a file
for a link during a command has no effect.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from ajet.schema.errors import UserError

INNER_FOLDERS = frozenset(
    {"episodes", "logs", "checkpoints", "exports", "pending", "open", "services", "adapter", "adapters", "trainer"}
)
"""Names of folders inside a run's folder, besides those of checkpoints."""
RUN_KINDS = frozenset({"debug", "eval", "prompt"})
"""Folders inside a run's folder with runs below."""
_CHECKPOINT = re.compile(r"\.?step-\d+(\..+)?")
_FLAGS = {"rb": os.O_RDONLY, "rb+": os.O_RDWR, "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND}
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPARSE_FROM = 1 << 30
_LARGEST_HOLE_SHARE = 1000
"""A file from _SPARSE_FROM bytes on must hold data for this fraction of its length."""
_MOST_EXTENTS = 1024


class RecordFileError(UserError, OSError):
    """A path in a run's record is a link, not a regular file, or too large, and is therefore not opened."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"ajet does not open {path.name}: the file {problem}.",
            where=str(path),
            expected=(
                "regular files and folders, as ajet writes them; only the run folder itself may be a symbolic link"
            ),
            do="delete the file, or get the run again from its author",
        )
        self.errno = errno.EINVAL
        self.strerror = f"it {problem}"
        self.filename = str(path)


def open_record_file(path: Path, mode: Literal["rb", "rb+", "ab"] = "rb") -> BinaryIO:
    """Open a regular file of a record, without following a link inside the record.

    Raises:
        RecordFileError: `path` is no regular file, or a link is on the path.
        OSError: The file is missing, or not permitted.
    """
    return os.fdopen(open_record_descriptor(path, _FLAGS[mode]), mode)


def open_record_descriptor(path: Path, flags: int, permissions: int = 0o666) -> int:
    """Open a regular file of a record, and return its descriptor, which child processes do not inherit.

    Args:
        flags: Flags of `os.open`.
        permissions: Mode of a new file, before the umask.

    Raises:
        OSError: As `open_record_file` does.
    """
    with _open_parent(path) as parent:
        descriptor = _open_entry(path, flags | _SAFE, parent, permissions)
    try:
        _check_regular(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_record_file(path: Path, limit: int) -> bytes:
    """Return the content of a file of a record. Raises RecordFileError above `limit` bytes, and OSError."""
    with open_record_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise RecordFileError(path, f"has {size:,} bytes, and ajet reads at most {limit:,}")
        return stream.read(limit)


def read_record_part(stream: BinaryIO, at: int, length: int) -> bytes:
    """Return `length` bytes of an open file from byte `at` on, or b"" if it does not hold them all."""
    if at < 0 or length < 0 or at + length > os.fstat(stream.fileno()).st_size:
        return b""
    stream.seek(at)
    return stream.read(length)


def replace_record_file(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Replace a file of a record, so that a reader sees either the old or the new content. Raises OSError.

    Args:
        sync: True to put the content on the disk before the replacement.
    """
    with open_replacement_file(path, sync=sync) as stream:
        stream.write(data)


@contextmanager
def open_replacement_file(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """Yield a new file, which replaces `path` if the block ends without an error.

    Args:
        sync: True to put the content on the disk before the replacement.
    """
    with _open_parent(path) as parent:
        # The name cannot be guessed and is created exclusively, so that a planted link is not written through.
        temporary = f".{path.name}.{secrets.token_hex(8)}.aside"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                if sync:
                    stream.flush()
                    os.fsync(stream.fileno())
            os.replace(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise
        if sync:
            os.fsync(parent)


def has_record_file(path: Path) -> bool:
    """Return True if `path` is a regular file of a record, which `open_record_file` would open."""
    file_status = _stat_entry(path)
    return file_status is not None and stat.S_ISREG(file_status.st_mode)


def measure_record_file(path: Path) -> int:
    """Return the size in bytes of a regular file in a record. Raises OSError if it is missing or a link."""
    with open_record_file(path) as stream:
        return os.fstat(stream.fileno()).st_size


def list_record_folder(path: Path) -> list[str]:
    """Return the sorted names in a folder of a record, or [] if it is missing. Raises OSError if it is a link."""
    try:
        with _open_parent(path / "_") as descriptor:  # any name in the folder, whose parent is opened
            return sorted(os.listdir(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return []


def make_record_folder(path: Path) -> None:
    """Create a folder of a record, with its parents inside the run. Raises OSError if a link is on the path."""
    outer, inner = split_record_path(path / "_")
    outer.mkdir(parents=True, exist_ok=True)
    for count in range(1, len(inner)):
        folder = outer.joinpath(*inner[:count])
        with suppress(FileExistsError):
            folder.mkdir()
    with _open_parent(path / "_"):
        pass


def refuse_links(run: Path) -> None:
    """Raise RecordFileError if a known folder inside the run's folder is a link, before a command writes there."""
    for name in sorted(INNER_FOLDERS | RUN_KINDS):
        if (run / name).is_symlink():
            raise RecordFileError(run / name, "is a symbolic link")


def refuse_special_files(folder: Path, *, links: bool) -> None:
    """Raise RecordFileError for a pipe, socket or device in `folder`, before a library loads a model.

    Args:
        folder: A model's folder. A file or a missing folder passes.
        links: True to allow links, as in the cache of a hub. A checkpoint has no links.
    """
    if not folder.is_dir():
        return
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if not links and path.is_symlink():
                raise RecordFileError(path, "is a symbolic link")
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise RecordFileError(path, "is not a regular file")
        # A library reads the files of a linked folder itself, and the link may lead to a complete disk.
        if links:
            return


def split_record_path(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Split a path into the run's folder, as the user named it, and the components inside the run.

    The names of a run's folders decide, not the disk: `RUN/episodes/step-1.jsonl` gives RUN and two components.
    """
    parts = path.parts
    split = len(parts) - 1
    while split > 1 and _is_inner(parts, split - 1):
        split -= 1
    return Path(*parts[:split]), parts[split:]


def _is_inner(parts: tuple[str, ...], at: int) -> bool:
    """Return True if component `at` of a path is a folder inside a run's folder."""
    name, parents = parts[at], parts[max(0, at - 2) : at]
    return (
        name in INNER_FOLDERS | RUN_KINDS
        or _CHECKPOINT.fullmatch(name) is not None
        or (bool(parents) and parents[-1] in RUN_KINDS | {"adapters"})
        or any(_CHECKPOINT.fullmatch(parent) for parent in parents)
    )


@contextmanager
def _open_parent(path: Path) -> Iterator[int]:
    """Yield a descriptor of the folder that holds `path`. No link inside the run is followed."""
    outer, inner = split_record_path(path)
    descriptor = os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for count, name in enumerate(inner[:-1], 1):
            parent = outer.joinpath(*inner[:count])
            inner_descriptor = _open_entry(parent, os.O_RDONLY | os.O_DIRECTORY | _SAFE, descriptor, name=name)
            os.close(descriptor)
            descriptor = inner_descriptor
        yield descriptor
    finally:
        os.close(descriptor)


def _open_entry(path: Path, flags: int, parent: int, permissions: int = 0o666, *, name: str | None = None) -> int:
    """Open an entry of the folder with the descriptor `parent`, and return its descriptor.

    Args:
        path: The entry's path, for errors.
        name: The entry's name. None: the last component of `path`.

    Raises:
        RecordFileError: The entry is a link or no regular file, or its name leads out of the folder.
        OSError: It cannot be opened for another reason.
    """
    name = path.name if name is None else name
    if name in ("..", ".", ""):
        raise RecordFileError(path, "has a path that leads out of its folder (..)")
    try:
        return os.open(name, flags, permissions, dir_fd=parent)
    except OSError as error:
        # The error says what was opened: a second look could find another entry in its place.
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise RecordFileError(path, "is a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise RecordFileError(path, "is not a regular file") from None
        # Only this error is that of a link and of a file alike, for a folder.
        if error.errno == errno.ENOTDIR and stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise RecordFileError(path, "is a symbolic link") from None
        error.filename = str(path)
        raise


def _check_regular(path: Path, number: int) -> None:
    """Raise RecordFileError if the open file is not regular, or claims a size of which almost nothing is stored."""
    file_status = os.fstat(number)
    if not stat.S_ISREG(file_status.st_mode):
        raise RecordFileError(path, "is not a regular file")
    if file_status.st_size >= _SPARSE_FROM and file_status.st_size > _LARGEST_HOLE_SHARE * _count_data(number):
        raise RecordFileError(path, f"claims {file_status.st_size:,} bytes, but almost nothing is stored on disk")


def _count_data(number: int) -> int:
    """Return the bytes of a file outside of holes, counted over its first extents."""
    data_bytes = position = 0
    for _ in range(_MOST_EXTENTS):
        try:
            start = os.lseek(number, position, os.SEEK_DATA)
            position = os.lseek(number, start, os.SEEK_HOLE)
        except OSError:  # ENXIO: only a hole follows
            break
        data_bytes += position - start
    os.lseek(number, 0, os.SEEK_SET)
    return data_bytes


def _stat_entry(path: Path) -> os.stat_result | None:
    """Return the status of an entry of a record, without following a link, or None if it cannot be read."""
    try:
        with _open_parent(path) as parent:
            return os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except (OSError, ValueError):
        return None
