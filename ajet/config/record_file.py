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
    """A path in a record is a link, no regular file, or too large, and is not opened."""

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
    """Open a regular file of a record.

    Raises:
        RecordFileError: `path` is no regular file, or a link is on the path.
        OSError: The file is missing, or not permitted.
    """
    return os.fdopen(open_record_descriptor(path, _FLAGS[mode]), mode)


def open_record_descriptor(path: Path, flags: int, permissions: int = 0o666) -> int:
    """Open a regular file of a record, and return a descriptor that no child inherits. Raises OSError."""
    with _open_parent(path) as parent:
        number = _open_entry(path, flags | _SAFE, parent, permissions)
    try:
        _check_regular(path, number)
    except BaseException:
        os.close(number)
        raise
    return number


def read_record_file(path: Path, limit: int) -> bytes:
    """Read a whole file of a record of at most `limit` bytes. Raises OSError."""
    with open_record_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise RecordFileError(path, f"has {size:,} bytes, and ajet reads at most {limit:,}")
        return stream.read(limit)


def read_record_part(stream: BinaryIO, at: int, length: int) -> bytes:
    """Read `length` bytes from byte `at` on, or b"" beyond the end of the file."""
    if at < 0 or length < 0 or at + length > os.fstat(stream.fileno()).st_size:
        return b""
    stream.seek(at)
    return stream.read(length)


def replace_record_file(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Replace a file atomically. With `sync` the content is on the disk before the rename. Raises OSError."""
    with open_replacement_file(path, sync=sync) as stream:
        stream.write(data)


@contextmanager
def open_replacement_file(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """Yield a new file, and replace `path` if the block ends without an error."""
    with _open_parent(path) as parent:
        # The name cannot be guessed and is created exclusively, so that a planted link is not written through.
        temporary = f".{path.name}.{secrets.token_hex(8)}.aside"
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o666, dir_fd=parent)
        try:
            with os.fdopen(number, "wb") as stream:
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
    """Return True if `open_record_file` would open a regular file."""
    about = _stat_entry(path)
    return about is not None and stat.S_ISREG(about.st_mode)


def measure_record_file(path: Path) -> int:
    """Return the size in bytes of a regular file of a record. Raises OSError as `open_record_file` does."""
    with open_record_file(path) as stream:
        return os.fstat(stream.fileno()).st_size


def list_record_folder(path: Path) -> list[str]:
    """Return the sorted names in a folder of a record, or [] if missing. Raise OSError for a link."""
    try:
        with _open_parent(path / "_") as number:
            return sorted(os.listdir(number))
    except (FileNotFoundError, NotADirectoryError):
        return []


def make_record_folder(path: Path) -> None:
    """Make a folder of a record and its parents within the run. Raise OSError if a link is on the path."""
    outer, inner = split_record_path(path / "_")
    outer.mkdir(parents=True, exist_ok=True)
    for count in range(1, len(inner)):
        folder = outer.joinpath(*inner[:count])
        with suppress(FileExistsError):
            folder.mkdir()
    with _open_parent(path / "_"):
        pass


def refuse_links(run: Path) -> None:
    """Before a command writes into a run's folder: raise RecordFileError where a folder in it is a link."""
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
    """Split a path into the user's folder and the components inside the run, the file's name last.

    The layout of a run decides, not the disk: `RUN/episodes/step-1.jsonl` is RUN and two components.
    """
    parts = path.parts
    split = len(parts) - 1
    while split > 1 and _is_inner(parts, split - 1):
        split -= 1
    return Path(*parts[:split]), parts[split:]


def _is_inner(parts: tuple[str, ...], at: int) -> bool:
    """True if component `at` of a path is a folder inside a run's folder."""
    name, above = parts[at], parts[max(0, at - 2) : at]
    return (
        name in INNER_FOLDERS | RUN_KINDS
        or _CHECKPOINT.fullmatch(name) is not None
        or (bool(above) and above[-1] in RUN_KINDS | {"adapters"})
        or any(_CHECKPOINT.fullmatch(each) for each in above)
    )


@contextmanager
def _open_parent(path: Path) -> Iterator[int]:
    """Yield a descriptor of the folder that holds `path`. No link below the user's folder is followed."""
    outer, inner = split_record_path(path)
    number = os.open(outer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for count, name in enumerate(inner[:-1], 1):
            parent = outer.joinpath(*inner[:count])
            below = _open_entry(parent, os.O_RDONLY | os.O_DIRECTORY | _SAFE, number, name=name)
            os.close(number)
            number = below
        yield number
    finally:
        os.close(number)


def _open_entry(path: Path, flags: int, parent: int, permissions: int = 0o666, *, name: str | None = None) -> int:
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
    about = os.fstat(number)
    if not stat.S_ISREG(about.st_mode):
        raise RecordFileError(path, "is not a regular file")
    if about.st_size >= _SPARSE_FROM and about.st_size > _LARGEST_HOLE_SHARE * _count_data(number):
        raise RecordFileError(path, f"claims {about.st_size:,} bytes, but almost nothing is stored on disk")


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
    try:
        with _open_parent(path) as parent:
            return os.stat(path.name, dir_fd=parent, follow_symlinks=False)
    except (OSError, ValueError):
        return None
