"""Crash-safe files: replaced atomically, appended by lines, synced to disk.

Invariant: a reader sees either the old or the new content of an atomic file, and every complete line of a line file. A
last line without a newline belongs to a killed process and is ignored.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ajet.config.record_file import open_record_file, read_record_file, replace_record_file
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import UserError


def write_atomically(path: Path, data: str | bytes, *, sync: bool = False) -> None:
    """Replace the file by `data`, so that a reader sees either the old or the new content.

    Args:
        sync: Put the new content on the disk before the replacement, which then survives a power failure.
    """
    replace_record_file(path, data.encode() if isinstance(data, str) else data, sync=sync)


def sync_folder(folder: Path) -> None:
    """Put a folder's own entries (names and renames of files) on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Put every file and folder below `folder`, and `folder` itself, on the disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(parent))


def apply_umask(folder: Path) -> None:
    """Give every file below `folder` the mode that the process umask gives a new file.

    safetensors writes files with mode 0600 whatever the umask is; a server of another user could not read them.
    """
    probe = folder / f".umask-{os.getpid()}"
    probe.touch(exist_ok=False)
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        file_status = path.lstat()
        if stat.S_ISREG(file_status.st_mode) and stat.S_IMODE(file_status.st_mode) != mode:
            path.chmod(mode)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append complete lines to a file and put them on the disk. An unfinished last line is cut off before."""
    cut_partial_line(path)
    with open_record_file(path, "ab") as file:
        file.writelines([line.encode() + b"\n" for line in lines])
        file.flush()
        os.fsync(file.fileno())


def cut_partial_line(path: Path) -> int:
    """Cut off a last line without a newline, which a killed process left. Return the number of removed bytes."""
    try:
        line_file = open_record_file(path, "rb+")
    except FileNotFoundError:
        return 0
    with line_file as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end


def read_tail(stream: BinaryIO, size: int) -> bytes:
    """Return the last `size` bytes of a file, or the complete file if shorter."""
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - size))
    return stream.read()


def read_last_lines(stream: BinaryIO, size: int) -> list[bytes]:
    """Return the complete lines within the last `size` bytes of a file, without their newlines."""
    is_cut = stream.seek(0, os.SEEK_END) > size
    return read_tail(stream, size).split(b"\n")[int(is_cut) : -1]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file, without an unfinished last line. Raises UserError for a damaged row."""
    for row, _ in read_lines(path):
        yield row


def read_lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield (row, line as bytes) of a JSON-lines file, without an unfinished last line.

    Raises:
        UserError: A line is damaged.
    """
    try:
        line_file = open_record_file(path)
    except FileNotFoundError:
        return
    with line_file as file:
        for number in itertools.count(1):
            try:
                line = next_line(file)
                if not line.endswith(b"\n"):
                    return
                row = parse_object(line)
            except ValueError as error:
                raise UserError(
                    f"A line of the record is damaged: {error}.",
                    where=f"{path}:{number}",
                    expected="one JSON object per line, as ajet writes it",
                    do=f"restore the file from a copy; or {FRESH_ADVICE}",
                ) from error
            yield row, line


def keep_rows(path: Path, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Rewrite a JSON-lines file with the rows for which `keep` returns True. Return the number of removed rows."""
    cut_partial_line(path)
    rows = list(read_rows(path))
    selected = [keep(row) for row in rows]
    if not all(selected):
        with open_record_file(path) as file:
            write_atomically(
                path, b"".join(line for line, is_selected in zip(file, selected, strict=True) if is_selected), sync=True
            )
    return len(rows) - sum(selected)


# JSON of a record, possibly received from another person.
# Invariant: a text that would need far more memory than its length, or is nested too deeply for the interpreter,
# raises ValueError like any other damage.
LONGEST_LINE = 256 << 20
"""Maximum bytes of a record's line."""
MOST_BYTES = 16 << 20
"""Maximum bytes of a file with one JSON value, such as status.json."""
MOST_VALUES = 16_000_000
"""Approximate maximum number of values in one text; each is a Python object."""
_CHEAP = 1 << 20


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raise ValueError if it is invalid, nested too deeply, or has too many values."""
    if len(text) > _CHEAP:
        marks: Any = ("[", "{", ",") if isinstance(text, str) else (b"[", b"{", b",")
        if sum(text.count(mark) for mark in marks) > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values (limit)")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a text. Raises ValueError for any other text."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"found a {type(value).__name__}, expected a JSON object")
    return value


def read_json(path: Path, limit: int = MOST_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError, and ValueError for any other content."""
    return parse_object(read_record_file(path, limit))


def next_line(stream: BinaryIO) -> bytes:
    """Return the next line of a file with its newline.

    An incomplete last line has no newline, and b"" means the end of the file.

    Raises:
        ValueError: the line is longer than LONGEST_LINE.
    """
    line = stream.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise ValueError(f"longer than {LONGEST_LINE:,} bytes (limit)")
    return line


# Turns errors of the operating system on writes into UserErrors, for run folders and for files named by options.
# Invariant: a disk that is full, over quota or read-only, a missing permission and a moved folder each raise
# CannotWriteError with the unwritten data and the safe data. Any other error passes through. A path named by an
# option is checked before expensive work where possible; existing files are not overwritten unless the caller
# allows it.
class CannotWriteError(UserError):
    """The disk refuses a write to the run's folder: it is full, read-only or gone. Earlier data is intact."""


NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOO_LARGE = ("os error 27", "file too large")
WORDS = ("no space left", "os error 28", *TOO_LARGE)
NEARLY_NOTHING = 2**20
REFUSALS = {
    errno.EDQUOT: ("The disk quota is used up", "free some disk space, or have the quota raised"),
    errno.EROFS: ("The file system is read-only", "remount it as writable{other_folder}"),
    errno.EACCES: ("This user has no write permission", "give this user write permission{other_folder}"),
    errno.EPERM: ("This user has no write permission", "give this user write permission{other_folder}"),
    errno.ENOENT: ("The folder was moved or deleted", "do not move a run's folder while the run is in progress"),
    errno.ENOTDIR: ("A file is where a folder should be", "move it away{other_folder}"),
    errno.EIO: ("The disk reports an error", "read the system's log: the disk may be failing"),
    errno.ESTALE: ("The network file system is no longer available", "mount it again"),
}
"""Meaning of an error number and advice; `other_folder` names an alternative."""
RECORD = "the record of the run"
EXP_DIR = ", or choose another folder with --exp-dir"


@contextmanager
def explain_write_errors(
    what: str,
    folder: Path,
    *,
    intact: str,
    room: str = RECORD,
    other_folder: str | None = None,
    then: str = "",
) -> Iterator[None]:
    """Raise CannotWriteError if the disk below `folder` refuses a write within the block.

    Args:
        what: data that could not be written, for the message.
        intact: data that is safe, for the message.
        room: required free space, for the message.
        other_folder: advice for another folder. "" for none, None for --exp-dir (not for a full disk, where the run
            would begin anew).
        then: effect of starting the same command again.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        number = find_refusal(error, folder)
        retry = f"; then start the same command again{then}"
        if number is not None:
            meaning, do = REFUSALS[number]
            raise CannotWriteError(
                f"{meaning}: {what} could not be written ({intact}).",
                where=str(folder),
                expected="a folder that this user may write to",
                do=do.format(other_folder=EXP_DIR if other_folder is None else other_folder) + retry,
            ) from error
        if not is_full(error, folder):
            raise
        if is_limited(error):
            raise CannotWriteError(
                f"A file reached the limit on file sizes: {what} could not be written ({intact}).",
                where=str(folder),
                expected="no limit on file sizes, or a larger one (ulimit -f, or the limit of the file system)",
                do=f"raise the limit{retry}",
            ) from error
        raise CannotWriteError(
            f"The disk is full: {what} could not be written ({intact}).",
            where=f"{folder} ({_free_bytes(folder) / 2**20:.0f} MiB free)",
            expected=f"free space for {room}",
            do=f"free some space{other_folder or ''}{retry}",
        ) from error


def find_refusal(error: BaseException, folder: Path) -> int | None:
    """Return the error number by which the disk refused a write below `folder`, or None for any other error.

    A file missing from an existing folder, or outside `folder`, is an ordinary error of the program.
    """
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        return None
    failed_path = Path(str(error.filename)) if error.filename is not None else folder
    if not failed_path.is_absolute() or not failed_path.is_relative_to(folder):
        return None if error.errno == errno.ENOENT else error.errno if folder.is_relative_to(failed_path) else None
    if error.errno == errno.ENOENT and folder.exists():
        return None
    return error.errno


def is_full(error: BaseException, folder: Path) -> bool:
    """Return True if the error means a full disk.

    Libraries wrap the system's errors, so causes and messages count too, and so does any error with no free space left.
    """
    if _error_matches(error, NUMBERS, WORDS):
        return True
    return isinstance(error, Exception) and _free_bytes(folder) < NEARLY_NOTHING


def is_limited(error: BaseException) -> bool:
    """Return True if a limit on file size caused the error, whatever space is free."""
    return _error_matches(error, (errno.EFBIG,), TOO_LARGE)


def _error_matches(error: BaseException, numbers: Collection[int], words: Collection[str]) -> bool:
    """Return True if the error or a cause of it has one of the error numbers, or one of the words in its message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in numbers:
            return True
        if any(word in str(cause).lower() for word in words):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of the folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def require_place(file: Path, option: str, *, new: bool = True) -> None:
    """Raise UserError if `file` cannot be written: missing folder, no permission, or a folder of this name.

    Args:
        option: The command-line option that names the file.
        new: True to refuse an existing file, too.
    """
    with convert_os_errors(file, option):  # the name may be too long, or the folder unreadable
        _require_place(file, option, new)


def _require_place(file: Path, option: str, new: bool) -> None:
    """Raise UserError if `file` cannot be written, as `require_place` describes."""
    if new and (file.exists() or file.is_symlink()):
        raise UserError(f"{file} exists already.", where=option, do=f"choose another file with {option}, or delete it")
    if file.is_dir():
        raise UserError(f"{file} is a folder, not a file.", where=option, expected="the name of a file")
    if not file.parent.exists():
        raise UserError(
            f"The folder {file.parent} does not exist.", where=option, do="create the folder, or choose another file"
        )
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is a file, not a folder.", where=option, do="choose another path")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(
            f"{file} cannot be written: this user has no permission.", where=option, do="choose another file"
        )


def require_folder(folder: Path, option: str) -> None:
    """Raise UserError if the folder of a command-line option cannot be created or written to."""
    with convert_os_errors(folder, option):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is not a folder")
        if not os.access(existing, os.W_OK):
            raise PermissionError("not permitted")


@contextmanager
def convert_os_errors(file: Path, option: str) -> Iterator[None]:
    """Within the block, turn an OSError about the file into a UserError.

    Args:
        option: The command-line option that names the file.
    """
    try:
        yield
    except UserError:  # the content is wrong, not the place
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{file} cannot be written: {reason}.", where=option, do="choose another path") from error
