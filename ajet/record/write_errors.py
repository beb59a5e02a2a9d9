"""Turns errors of the operating system on writes into UserErrors, for run folders and for files named by options.

Invariant: a disk that is full, over quota or read-only, a missing permission and a moved folder each raise
CannotWriteError with the unwritten data and the safe data. Any other error passes through. A path named by an option is
checked before expensive work where possible; existing files are not overwritten unless the caller allows it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.schema.errors import UserError


class CannotWriteError(UserError):
    """The run's folder cannot be written at present; nothing was written."""


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
    """Raise CannotWriteError if the disk below `folder` refuses the writes of the block.

    Args:
        what: data that could not be written.
        intact: data that is safe.
        room: required free space.
        other_folder: advice for another folder; "" for none, None for --exp-dir (not for a full disk, where the run
            would begin anew).
        then: effect of the same command after a restart.
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
    """Return the error number in REFUSALS that explains a failed write below `folder`; None for other errors.

    A missing file in an existing folder, or outside `folder`, is no refusal.
    """
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        return None
    about = Path(str(error.filename)) if error.filename is not None else folder
    if not about.is_absolute() or not about.is_relative_to(folder):
        return None if error.errno == errno.ENOENT else error.errno if folder.is_relative_to(about) else None
    if error.errno == errno.ENOENT and folder.exists():
        return None
    return error.errno


def is_full(error: BaseException, folder: Path) -> bool:
    """True if `error` or its cause means a full disk; libraries wrap operating system errors."""
    if _error_matches(error, NUMBERS, WORDS):
        return True
    return isinstance(error, Exception) and _free_bytes(folder) < NEARLY_NOTHING


def is_limited(error: BaseException) -> bool:
    """True if a limit on file size caused the error, independent of free space."""
    return _error_matches(error, (errno.EFBIG,), TOO_LARGE)


def _error_matches(error: BaseException, numbers: Collection[int], words: Collection[str]) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in numbers:
            return True
        if any(each in str(seen).lower() for each in words):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _free_bytes(folder: Path) -> int:
    """Return the free bytes at the nearest existing parent folder."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def require_place(file: Path, option: str, *, new: bool = True) -> None:
    """Refuse a path that cannot be written: missing folder, no permission, a folder, or an existing file (`new`)."""
    with convert_os_errors(file, option):  # the name may be too long, or the folder unreadable
        _require_place(file, option, new)


def _require_place(file: Path, option: str, new: bool) -> None:
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
    """Refuse a folder that cannot be created or written. Raises UserError."""
    with convert_os_errors(folder, option):
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not there.is_dir():
            raise NotADirectoryError(f"{there} is not a folder")
        if not os.access(there, os.W_OK):
            raise PermissionError("not permitted")


@contextmanager
def convert_os_errors(file: Path, option: str) -> Iterator[None]:
    """Within the block, what the system refuses becomes a UserError."""
    try:
        yield
    except UserError:  # the content is wrong, not the place
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"{file} cannot be written: {why}.", where=option, do="choose another path") from error
