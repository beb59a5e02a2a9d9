"""episodes/: what was played, one line an episode and one blob of arrays beside it (DESIGN decision 10).

Invariant: a line is written only after its blob is on the disk, so a complete line always has its arrays; what a
killed process left half-written is not read and is overwritten by the next writer. A write that failed leaves no line.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ajet.record import write_errors
from ajet.record.episode_codec import MOST_NUMBERS, decode, decode_outcome, encode
from ajet.record.files import append_lines, heal, read_rows, sync_folder
from ajet.record.secrets import Redactor
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import UserError

OnWritten = Callable[[int, str, Sequence[Episode], Mapping[str, Outcome]], None]
NAME = re.compile(r"step-(\d+)(?:\.(\w+))?\.jsonl")


class EpisodeFiles:
    """The episodes of one run. Training's are in `step-N.jsonl`, another split's in `step-N.SPLIT.jsonl`."""

    def __init__(self, folder: Path, redact: Redactor | None = None) -> None:
        self.folder = folder
        self._redact = redact or Redactor({})
        self.on_written: OnWritten | None = None
        """Called with what was written, once it is on the disk."""
        self._ends: dict[Path, tuple[int, int]] = {}
        """By line file: its size when this writer left it, and where its blob ended then."""

    def path(self, step: int, split: str = "train") -> Path:
        """The line file of a step; the blob has the suffix `.bin`."""
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
        """Append episodes to a step, with their `outcomes` by uuid, and `notes`, by uuid, as further keys of their
        lines. On return they are on the disk. Raises UserError when it is full."""
        with write_errors.explained(f"the episodes of step {step}", self.folder.parent, kept="earlier steps are whole"):
            self.folder.mkdir(exist_ok=True)
            path = self.path(step, split)
            heal(path)
            size = path.stat().st_size if path.exists() else 0
            left, end = self._ends.get(path, (-1, 0))
            if left != size:
                end = max((row["blob"]["offset"] + row["blob"]["length"] for row in read_rows(path)), default=0)
            try:
                lines, end = self._append_blobs(path.with_suffix(".bin"), end, episodes, outcomes or {}, notes or {})
                append_lines(path, lines)
                sync_folder(self.folder)
            except BaseException:
                with contextlib.suppress(OSError):  # by its name, which takes no descriptor; the first error is told
                    os.truncate(path, size)
                raise
            self._ends[path] = (path.stat().st_size, end)
        if self.on_written is not None:
            self.on_written(step, split, episodes, outcomes or {})

    def _append_blobs(
        self,
        path: Path,
        end: int,
        episodes: Iterable[Episode],
        outcomes: Mapping[str, Outcome],
        notes: Mapping[str, Mapping[str, Any]],
    ) -> tuple[list[str], int]:
        """Write the arrays from byte `end` on, put them on the disk, and answer the lines to go with them and the new
        end."""
        lines = []
        with path.open("ab") as file:
            file.truncate(end)
            for episode in episodes:
                row, raw = encode(episode, outcomes.get(episode.uuid))
                row |= notes.get(episode.uuid, {})
                packed = zlib.compress(raw, 6)
                row["blob"] = {"offset": end, "length": len(packed), "crc32": zlib.crc32(packed)}
                end += file.write(packed)
                lines.append(self._redact.row(row))
            file.flush()
            os.fsync(file.fileno())
        return lines, end

    def read(self, step: int, split: str = "train") -> list[Episode]:
        """The episodes of a step in the order written; [] when none are recorded. Raises UserError for damage."""
        return [episode for episode, _ in self.recorded(step, split)]

    def recorded(self, step: int, split: str = "train") -> list[tuple[Episode, Outcome]]:
        """The same, each with what became of it."""
        return list(read_recorded(self.path(step, split)))

    def steps(self, split: str = "train") -> list[int]:
        """The steps that have episodes, ascending."""
        found = (NAME.fullmatch(path.name) for path in self.folder.glob("step-*.jsonl"))
        return sorted(int(match[1]) for match in found if match and (match[2] or "train") == split)

    def truncate(self, after_step: int) -> None:
        """Forget the episodes of later steps: a resumed run plays them again."""
        for path in self.folder.glob("step-*.jsonl"):
            match = NAME.fullmatch(path.name)
            if match and int(match[1]) > after_step:
                path.unlink()
                path.with_suffix(".bin").unlink(missing_ok=True)


def read_recorded(path: Path) -> Iterator[tuple[Episode, Outcome]]:
    """The episodes of one line file, whose blob lies beside it, and what became of each."""
    rows = list(read_rows(path))
    if not rows:
        return
    with path.with_suffix(".bin").open("rb") as blobs:
        for number, row in enumerate(rows, 1):
            yield recorded_of(row, blobs, f"{path}:{number}")


def recorded_of(row: dict[str, Any], blobs: BinaryIO, where: str) -> tuple[Episode, Outcome]:
    """The episode of a line whose arrays lie in `blobs`, and what became of it. Raises UserError for whatever is
    damaged in it, before it costs more memory than an episode takes."""
    try:
        return decode(row, _unpacked(row, blobs, where)), decode_outcome(row)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, zlib.error) as error:
        what = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(
            f"A recorded episode is damaged: {what[:300]}.", where=where, do="restore the file from a copy"
        ) from error


def _unpacked(row: dict[str, Any], blobs: BinaryIO, where: str) -> bytes:
    place, counts = row["blob"], row["arrays"]
    numbers = counts["ints"] + counts["floats"]
    if min(counts["ints"], counts["floats"], place["offset"], place["length"]) < 0 or numbers > MOST_NUMBERS:
        raise ValueError(f"its arrays are said to hold {numbers} numbers")
    size = 4 * numbers
    length = min(place["length"], size + (size >> 10) + 64)  # zlib never makes it longer
    blobs.seek(place["offset"])
    packed = blobs.read(length)
    if len(packed) != place["length"] or zlib.crc32(packed) != place["crc32"]:
        raise UserError(
            "The arrays of a recorded episode are damaged (wrong checksum).",
            where=where,
            expected=f"{place['length']} bytes at {place['offset']} in the .bin file beside it",
            do="restore the file from a copy",
        )
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(packed, size + 1)
    if len(raw) != size or not unpacker.eof:
        raise ValueError(f"its arrays are not the {numbers} numbers that they are said to be")
    return raw
