"""What the disk refuses is a sentence: the boundary of all writes below a run's folder, and of files that a user named.

Invariant: a disk that is full, over quota or read-only, a missing permission and a moved folder each raise
CannotWriteError, a UserError that says what could not be written and what is safe. Any other error passes through. A
place that an option names is checked before anything is played, judged or merged for it, if that is possible; existing
files are not overwritten unless the caller says so.
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
    """The folder of a run cannot be written, for now: nothing of it is."""


NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOO_LARGE = ("os error 27", "file too large")
WORDS = ("no space left", "os error 28", *TOO_LARGE)
NEARLY_NOTHING = 2**20
REFUSALS = {
    errno.EDQUOT: ("The quota is used up", "free some space, or have the quota raised"),
    errno.EROFS: ("The file system is read-only", "mount it for writing{other_folder}"),
    errno.EACCES: ("Writing is not permitted", "give this user the right{other_folder}"),
    errno.EPERM: ("Writing is not permitted", "give this user the right{other_folder}"),
    errno.ENOENT: ("The folder was moved or deleted", "leave a run's folder where it is while the run lives"),
    errno.ENOTDIR: ("A file is where a folder should be", "move it away{other_folder}"),
    errno.EIO: ("The disk reports an error", "look at the system's log: the disk may be failing"),
    errno.ESTALE: ("The file system has gone away", "mount it again"),
}
"""What an error of the operating system means here, and what to do; `other_folder`: a way to name another folder."""
RECORD = "the record of the run"
EXP_DIR = ", or name another folder with --exp-dir"


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
    """Turn the failure of the block into a CannotWriteError when the disk below `folder` refuses what it writes.

    `what` could not be written; `intact` says what is safe. `room`: what has to fit; `other_folder`: a way to name
    another folder ("" for none; None: --exp-dir, though not for room, as the run would begin anew there); `then`: what
    the same command does once it is started again.
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
                expected="a folder that can be written to",
                do=do.format(other_folder=EXP_DIR if other_folder is None else other_folder) + retry,
            ) from error
        if not is_full(error, folder):
            raise
        if is_limited(error):
            raise CannotWriteError(
                f"A file may not grow so large: {what} could not be written ({intact}).",
                where=str(folder),
                expected="no limit on the size of files, or a larger one (ulimit -f; the file system has one, too)",
                do=f"raise it{retry}",
            ) from error
        raise CannotWriteError(
            f"The disk is full: {what} could not be written ({intact}).",
            where=f"{folder} ({_free_bytes(folder) / 2**20:.0f} MiB free)",
            expected=f"room for {room}",
            do=f"free some space{other_folder or ''}{retry}",
        ) from error


def find_refusal(error: BaseException, folder: Path) -> int | None:
    """The number in REFUSALS that says why nothing can be written below `folder`; None where that is not the reason. A
    missing file elsewhere, or in a folder that is there, is none."""
    if not isinstance(error, OSError) or error.errno not in REFUSALS:
        return None
    about = Path(str(error.filename)) if error.filename is not None else folder
    if not about.is_absolute() or not about.is_relative_to(folder):
        return None if error.errno == errno.ENOENT else error.errno if folder.is_relative_to(about) else None
    if error.errno == errno.ENOENT and folder.exists():
        return None
    return error.errno


def is_full(error: BaseException, folder: Path) -> bool:
    """True when `error`, or what caused it, says so; libraries wrap the operating system's error in their own."""
    if _error_matches(error, NUMBERS, WORDS):
        return True
    return isinstance(error, Exception) and _free_bytes(folder) < NEARLY_NOTHING


def is_limited(error: BaseException) -> bool:
    """True when it is a limit on the size of one file that stands in the way, however much room there is."""
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
    """Bytes; of the nearest folder above that is there."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def require_place(file: Path, option: str, *, new: bool = True) -> None:
    """Raises UserError where `file` cannot be written: its folder is missing, not permitted or none; it is there
    already (`new`), or is a folder."""
    with convert_os_errors(file, option):  # a name that is too long, a folder that nobody may look into
        _require_place(file, option, new)


def _require_place(file: Path, option: str, new: bool) -> None:
    if new and (file.exists() or file.is_symlink()):
        raise UserError(f"{file} exists already.", where=option, do=f"name another with {option}, or remove it")
    if file.is_dir():
        raise UserError(f"{file} is a folder.", where=option, expected="the name of a file")
    if not file.parent.exists():
        raise UserError(f"There is no folder {file.parent}.", where=option, do="make it, or name a file elsewhere")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is no folder.", where=option, do="name a file elsewhere")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"{file} cannot be written: not permitted.", where=option, do="name a file elsewhere")


def require_folder(folder: Path, option: str) -> None:
    """Raises UserError where the folder cannot be made, or written to if it is there."""
    with convert_os_errors(folder, option):
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not there.is_dir():
            raise NotADirectoryError(f"{there} is no folder")
        if not os.access(there, os.W_OK):
            raise PermissionError("not permitted")


@contextmanager
def convert_os_errors(file: Path, option: str) -> Iterator[None]:
    """Within the block, what the system refuses becomes a UserError."""
    try:
        yield
    except UserError:  # of what is written, and not of the place
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(f"{file} cannot be written: {why}.", where=option, do="name another place") from error
