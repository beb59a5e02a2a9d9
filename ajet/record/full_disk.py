"""A full disk, told apart from a bug, whatever library met it first."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.schema.errors import UserError

NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WORDS = ("no space left", "os error 28", "os error 27", "file too large")
NEARLY_NOTHING = 2**20


@contextmanager
def explained(what: str, folder: Path, *, kept: str) -> Iterator[None]:
    """Turn the failure of the block into a UserError when the disk below `folder` is full.

    `what` could not be written; `kept` says what is safe.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not is_full(error, folder):
            raise
        free = shutil.disk_usage(folder).free / 2**20
        raise UserError(
            f"The disk is full: {what} could not be written ({kept}).",
            where=f"{folder} ({free:.0f} MiB free)",
            expected="room for one more checkpoint than trainer_common.max_checkpoints_to_keep, and the records",
            do="free some space and start the same command again: it continues from the last complete checkpoint",
        ) from error


def is_full(error: BaseException, folder: Path) -> bool:
    """True when `error`, or what caused it, says so; libraries wrap the operating system's error in their own."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in NUMBERS:
            return True
        if any(words in str(seen).lower() for words in WORDS):
            return True
        seen = seen.__cause__ or seen.__context__
    return isinstance(error, Exception) and shutil.disk_usage(folder).free < NEARLY_NOTHING
