"""Shared code of the servers for pictures, recordings and videos: reads a file or an address, and runs ffmpeg.

Invariant: ffmpeg gets an open descriptor of a checked file and may open files only, no addresses and no playlists with
addresses. A file of a task could otherwise make it read from a private network.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from .documents import MAX_FILE
from .folder import Folder
from .process import Finished, run
from .settings import Settings
from .tool import ToolError
from .web import get


def read_media(given: str, settings: Settings, folder: Folder) -> bytes:
    """Return the bytes of a file of the working folder, or the content of an address. Raises ToolError if too large."""
    if given.startswith(("http://", "https://")):
        reply = get(given, settings, limit=min(MAX_FILE, settings.max_download))
        if reply.cut:
            raise ToolError("the file is too large")
        return reply.body
    return folder.read_bytes(given, MAX_FILE)


def open_media(given: str, settings: Settings, folder: Folder) -> BinaryIO:
    """Open a file, or the content of an address, for reading."""
    if not given.startswith(("http://", "https://")):
        return folder.read(given)
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(read_media(given, settings, folder))
    file.seek(0)
    return file


def ffmpeg(
    file: BinaryIO, before: Sequence[str], after: Sequence[str], settings: Settings, *, fails: bool = True
) -> Finished:
    """Run ffmpeg on an open file within the time limit, and return its result.

    Args:
        before: arguments before the input file.
        after: arguments after the input file, such as the output.
        fails: True to raise ToolError for an exit status other than 0.
    """
    source = f"/dev/fd/{file.fileno()}"
    with tempfile.TemporaryDirectory() as empty_folder:
        finished = run(
            [_find_ffmpeg(), "-hide_banner", "-nostdin", "-protocol_whitelist", "file", *before, "-i", source, *after],
            folder=Path(empty_folder),
            timeout=settings.timeout,
            limit=settings.max_bytes,
            descriptors=(file.fileno(),),
        )
    if finished.code is None:
        raise ToolError("ffmpeg exceeded its time limit")
    if finished.code and fails:
        raise ToolError(f"ffmpeg: {finished.errors.strip()[-500:]}")
    return finished


def describe_media(file: BinaryIO, settings: Settings) -> list[str]:
    """Return ffmpeg's description of a file: format, duration and streams, one line each. Raises ToolError without."""
    # Without an output file ffmpeg prints the description as errors and fails.
    output = ffmpeg(file, [], [], settings, fails=False).errors
    lines = [line.strip() for line in output.splitlines()]
    facts = [line for line in lines if line.startswith(("Input #0", "Duration:", "Stream #"))]
    if not facts:
        raise ToolError(f"no readable recording: {lines[-1] if lines else ''}")
    return facts


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def _find_ffmpeg() -> str:
    """Return the path of ffmpeg, on the PATH or from the package imageio_ffmpeg. Raises ToolError without either."""
    on_path = shutil.which("ffmpeg")
    if on_path is not None:
        return on_path
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ToolError("this tool is off: the program ffmpeg is not installed") from None
    return str(imageio_ffmpeg.get_ffmpeg_exe())
