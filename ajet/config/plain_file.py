"""A file of a record, read whole.

Invariant: what is read is an ordinary file of at most the size that its reader expects; a link, a pipe, a device and a
file that is larger are errors, and nothing waits for them.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_plain_file(path: Path, most: int) -> bytes:
    """The bytes of `path`, at most `most`. Raises OSError for what is not there, no ordinary file, or larger."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"it has {about.st_size:,} bytes, at most {most:,} are read", str(path))
        return stream.read(most)
