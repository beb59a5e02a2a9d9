"""episodes/: recorded episodes, one JSON line each and one blob file of arrays per line file (DESIGN decision 10).

Invariant: a line is written only after its blob is on disk, so a complete line always has arrays. A partial line of a
killed process is not read; the next writer overwrites the line. A failed write leaves no line.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ajet.config.record_file import has_record_file, list_record_folder, open_record_file, read_record_part
from ajet.record import files
from ajet.record.chain import Chain, LinkedLine, LinkedLines, digest_of, linked_line
from ajet.record.episode_codec import MOST_NUMBERS, decode, decode_outcome, decode_tool_uses, encode
from ajet.record.files import append_lines, cut_partial_line, read_rows, sync_folder
from ajet.record.secrets import Redactor
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse

OnWritten = Callable[[int, str, Sequence[Episode], Mapping[str, Outcome]], None]
_DIGEST = ', "digest": "'
"""Text before the digest, the last key of a line with notes."""
NAME = re.compile(r"step-(\d+)(?:\.(\w+))?\.jsonl")


class EpisodeFiles:
    """The recorded episodes of one run: of training in `step-N.jsonl`, of validation in `step-N.validation.jsonl`."""

    def __init__(self, folder: Path, redact: Redactor | None = None) -> None:
        self.folder = folder
        self._redact = redact or Redactor({})
        self.on_written: OnWritten | None = None
        """Called with the episodes after they were written."""
        self.chain: Chain | None = None
        """Receives each written line for the next link."""
        self._file_ends: dict[Path, tuple[int, int, int]] = {}
        """Per line file: size after the last write, end of the blob, number of lines."""

    def path(self, step: int, split: str = "train") -> Path:
        """Return the JSON-lines file of a step and split. Its blob file has the same name with the suffix `.bin`."""
        return self.folder / (f"step-{step}.jsonl" if split == "train" else f"step-{step}.{split}.jsonl")

    def write(
        self,
        step: int,
        split: str,
        episodes: Sequence[Episode],
        outcomes: Mapping[str, Outcome] | None = None,
        *,
        notes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Append episodes to the files of a step. Lines and arrays are on disk on return.

        Args:
            outcomes: What a training step did with the episodes, by uuid.
            notes: Further keys of the lines, by uuid; each line then ends with a digest of line and arrays.

        Raises:
            UserError: The disk is full; the line file is as before.
        """
        with files.explain_write_errors(
            f"the episodes of step {step}", self.folder.parent, intact="the episodes of earlier steps are complete"
        ):
            self.folder.mkdir(exist_ok=True)
            path = self.path(step, split)
            cut_partial_line(path)
            size = path.stat().st_size if path.exists() else 0
            last_size, blob_end, count = self._file_ends.get(path, (-1, 0, 0))
            # Another process wrote to the file, or this is the first write.
            if last_size != size:
                row_ends = [row["blob"]["offset"] + row["blob"]["length"] for row in read_rows(path)]
                blob_end, count = max(row_ends, default=0), len(row_ends)
            blob_start = blob_end
            linked_lines: list[LinkedLine] = []
            try:
                lines, blob_end = self._append_blobs(
                    path.with_suffix(".bin"), blob_end, episodes, outcomes or {}, notes, linked_lines
                )
                append_lines(path, lines)
                sync_folder(self.folder)
            except BaseException:
                with contextlib.suppress(OSError):  # a name needs no descriptor; the first error is raised
                    os.truncate(path, size)
                raise
            self._file_ends[path] = (path.stat().st_size, blob_end, count + len(lines))
            if self.chain is not None and linked_lines:
                file = f"{self.folder.name}/{path.name}"
                self.chain.note_lines(LinkedLines(file, count + 1, size, blob_start, linked_lines))
        if self.on_written is not None:
            self.on_written(step, split, episodes, outcomes or {})

    def _append_blobs(
        self,
        path: Path,
        end: int,
        episodes: Iterable[Episode],
        outcomes: Mapping[str, Outcome],
        notes: Mapping[str, Mapping[str, Any]] | None,
        linked: list[LinkedLine],
    ) -> tuple[list[str], int]:
        """Write the arrays of episodes to the blob file from byte `end` on, and sync them.

        Args:
            path: The blob file. What lies behind `end` belongs to a failed write, and is cut off.
            linked: With a chain, is filled with the digests of the lines.

        Returns:
            The episodes' JSON lines, and the new end of the blob file.
        """
        lines = []
        with open_record_file(path, "ab") as file:
            file.truncate(end)
            for episode in episodes:
                row, raw = encode(episode, outcomes.get(episode.uuid))
                row |= (notes or {}).get(episode.uuid, {})
                packed = zlib.compress(raw, 6)
                row["blob"] = {"offset": end, "length": len(packed), "crc32": zlib.crc32(packed)}
                end += file.write(packed)
                line = self._redact.row(row)
                if notes is not None:
                    line = f'{line[:-1]}{_DIGEST}{_digest_line(line.encode(), packed)}"}}'
                lines.append(line)
                if self.chain is not None:
                    linked.append(linked_line(episode.uuid, self._redact(episode.task.task_id), line, packed))
            file.flush()
            os.fsync(file.fileno())
        return lines, end

    def read(self, step: int, split: str = "train") -> list[Episode]:
        """Return the episodes of a step in written order, or [] without any. Raises UserError for a damaged file."""
        return [episode for episode, _ in self.recorded(step, split)]

    def recorded(self, step: int, split: str = "train") -> list[tuple[Episode, Outcome]]:
        """Return the episodes of a step in written order, each with its use in training."""
        return list(read_recorded(self.path(step, split)))

    def steps(self, split: str = "train") -> list[int]:
        """Return the steps with recorded episodes of this split, in ascending order."""
        matches = (NAME.fullmatch(name) for name in list_record_folder(self.folder))
        return sorted(int(match[1]) for match in matches if match and (match[2] or "train") == split)

    def whole_steps(self) -> list[int]:
        """Return the training steps whose arrays still exist. Retention may remove arrays before lines."""
        return [step for step in self.steps() if has_record_file(self.path(step).with_suffix(".bin"))]

    def truncate(self, after_step: int) -> None:
        """Delete the episode files of steps after `after_step`, because a resumed run plays these steps again."""
        for name in list_record_folder(self.folder):
            match = NAME.fullmatch(name)
            if match and int(match[1]) > after_step:
                path = self.folder / name
                path.unlink()
                path.with_suffix(".bin").unlink(missing_ok=True)


def read_recorded(path: Path) -> Iterator[tuple[Episode, Outcome]]:
    """Yield the episodes of one line file, each with its outcome. The blob file must be in the same folder."""
    rows = list(read_rows(path))
    if not rows:
        return
    with open_arrays(path) as blobs:
        for number, row in enumerate(rows, 1):
            yield decode_recorded(row, blobs, f"{path}:{number}")


def open_arrays(path: Path) -> BinaryIO:
    """Open the blob file that belongs to a line file. Raises UserError if it is missing."""
    try:
        return open_record_file(path.with_suffix(".bin"))
    except FileNotFoundError as error:
        raise UserError(
            "The token arrays of these episodes are missing: `ajet gc` or trainer_common.keep_arrays removed "
            "them, or they were lost.",
            where=str(path.with_suffix(".bin")),
            do="run `ajet audit` to see the reason and the recorded lines",
        ) from error


def decode_recorded(row: dict[str, Any], blobs: BinaryIO, where: str) -> tuple[Episode, Outcome]:
    """Return the episode and the outcome of a parsed line, with arrays from the open blob file.

    Args:
        where: File and line number, for the error.

    Raises:
        UserError: The line or the arrays are damaged. Sizes are checked before memory is used.
    """
    with _explain_damage(where):
        blob = _read_arrays(row, blobs, where)
        return decode(row, blob), decode_outcome(row, blob)


def matches_digest(row: Mapping[str, Any], line: bytes, blobs: BinaryIO) -> bool:
    """True if a line with notes and its arrays have the digest written with them.

    Args:
        row: The parsed line.
        line: The line as bytes.
        blobs: The open blob file.

    Raises:
        ValueError: The arrays cannot be read. Other errors of damaged values are possible, too.
    """
    body, _, recorded_digest = line.removesuffix(b"\n").rpartition(_DIGEST.encode())
    start, length = row["blob"]["offset"], row["blob"]["length"]
    arrays = read_record_part(blobs, start, length)
    if len(arrays) != length or start < 0:
        raise ValueError("its arrays are not at the recorded position of the .bin file")
    return recorded_digest == f'{_digest_line(body + b"}", arrays)}"}}'.encode()


def _digest_line(line: bytes, arrays: bytes) -> str:
    """Return the digest of an episode's line and its packed arrays together."""
    return digest_of(b"\n".join((line, arrays)))  # a line holds no newline, so no two bodies are equal


def read_tool_uses(path: Path) -> Iterator[tuple[Task, int, tuple[ToolUse, ...]]]:
    """Yield (task, repeat, tool uses) of each episode in a line file, without reading arrays.

    Raises:
        UserError: A line is damaged.
    """
    for number, row in enumerate(read_rows(path), 1):
        with _explain_damage(f"{path}:{number}"):
            uses = decode_tool_uses(row)
        yield uses


@contextlib.contextmanager
def _explain_damage(where: str) -> Iterator[None]:
    """Within the block, turn the errors of decoding a damaged line into a UserError that names `where`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, zlib.error) as error:
        problem = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"A recorded episode is damaged: {problem[:300]}.", where=where, do="restore the file from a copy"
        ) from error


def _read_arrays(row: dict[str, Any], blobs: BinaryIO, where: str) -> bytes:
    """Return the bytes of an episode's arrays, after checking checksum and size."""
    position, counts = row["blob"], row["arrays"]
    numbers = counts["ints"] + counts["floats"]
    if min(counts["ints"], counts["floats"], position["offset"], position["length"]) < 0 or numbers > MOST_NUMBERS:
        raise ValueError(f"its arrays claim to contain {numbers} numbers")
    size = 4 * numbers
    # The length comes from the line, which may be damaged: it must not decide how much memory is used.
    length = min(position["length"], size + (size >> 10) + 64)  # zlib never makes it longer
    blobs.seek(position["offset"])
    packed = blobs.read(length)
    if len(packed) != position["length"] or zlib.crc32(packed) != position["crc32"]:
        raise UserError(
            "The token arrays of a recorded episode are damaged: their checksum is wrong.",
            where=where,
            expected=f"{position['length']} bytes at {position['offset']} in the .bin file next to it",
            do="restore the file from a copy",
        )
    unpacker = zlib.decompressobj()
    # One byte more than expected, to notice data that unpacks to a larger size.
    raw = unpacker.decompress(packed, size + 1)
    if len(raw) != size or not unpacker.eof:
        raise ValueError(f"its arrays do not contain the recorded {numbers} numbers")
    return raw


class EpisodeWriter:
    """Writes finished episodes to disk in its own thread.

    Invariant: no attempt waits for the disk. Episodes that finish during a write form the next write. A failed write is
    raised by the next `put` or by `close`; nothing is written afterwards.
    """

    def __init__(self, files: EpisodeFiles, step: int, split: str) -> None:
        self._files = files
        self._step = step
        self._split = split
        self._queue: queue.SimpleQueue[Episode | None] = queue.SimpleQueue()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._write_queue, name="ajet-episodes", daemon=True)
        self._thread.start()

    def put(self, episode: Episode) -> None:
        """Queue the episode for writing, without waiting. Raises UserError or OSError of an earlier failed write."""
        if self._problem is not None:
            raise self._problem
        self._queue.put(episode)

    def close(self) -> None:
        """Wait until all queued episodes are on disk, and end the thread.

        Raises the UserError or OSError of a failed write.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if self._problem is not None:
            raise self._problem

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_queue(self) -> None:
        """Write queued episodes until `close` queues None.

        What is queued during a write is written together by the next.
        """
        is_open = True
        while is_open:
            queued = [self._queue.get()]
            while not self._queue.empty():
                queued.append(self._queue.get())
            is_open = None not in queued
            try:
                if episodes := [episode for episode in queued if episode is not None]:
                    self._files.write(self._step, self._split, episodes)
            except Exception as error:  # noqa: BLE001 - raised where the episodes come from
                self._problem = error
                return
