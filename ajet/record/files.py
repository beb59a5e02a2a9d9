"""Crash-safe files: replaced atomically, appended by lines, synced to disk.

Invariant: a reader sees either the old or the new content of an atomic file, and every complete line of a line file. A
last line without a newline belongs to a killed process and is ignored.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ajet.config.record_file import open_record_file, replace_record_file
from ajet.record.bounded_json import next_line, parse_object
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import UserError


def write_atomically(path: Path, data: str | bytes, *, sync: bool = False) -> None:
    """Replace `path` by `data` atomically. `sync`: sync the content before the rename."""
    replace_record_file(path, data.encode() if isinstance(data, str) else data, sync=sync)


def sync_folder(folder: Path) -> None:
    """Put the folder's own entries (names, renames) on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Put every file and folder below `folder`, and itself, on the disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            handle = os.open(Path(parent, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
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
        about = path.lstat()
        if stat.S_ISREG(about.st_mode) and stat.S_IMODE(about.st_mode) != mode:
            path.chmod(mode)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append complete lines and sync them. A partial last line is cut off first."""
    cut_partial_line(path)
    with open_record_file(path, "ab") as file:
        file.writelines([line.encode() + b"\n" for line in lines])
        file.flush()
        os.fsync(file.fileno())


def cut_partial_line(path: Path) -> int:
    """Cut off a last line without a newline; return the number of removed bytes."""
    try:
        opened = open_record_file(path, "rb+")
    except FileNotFoundError:
        return 0
    with opened as file:
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
    """The rows of a JSON-lines file, an unfinished last line left out. Raises UserError at a damaged one."""
    for row, _ in read_lines(path):
        yield row


def read_lines(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The rows of a file, each with its line."""
    try:
        opened = open_record_file(path)
    except FileNotFoundError:
        return
    with opened as file:
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
    """Rewrite a JSON-lines file with the rows accepted by `keep`; return the number of removed rows."""
    cut_partial_line(path)
    rows = list(read_rows(path))
    selected = [keep(row) for row in rows]
    if not all(selected):
        with open_record_file(path) as file:
            write_atomically(
                path, b"".join(line for line, wanted in zip(file, selected, strict=True) if wanted), sync=True
            )
    return len(rows) - sum(selected)
