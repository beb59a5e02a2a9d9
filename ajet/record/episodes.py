"""episodes/: what was played, one line an episode and one blob of arrays beside it (DESIGN decision 10).

Invariant: a line is written only after its blob is on the disk, so a complete line always has its arrays; what a
killed process left half-written is not read and is overwritten by the next writer.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet.record import full_disk
from ajet.record.episode_codec import decode, encode
from ajet.record.files import append_lines, heal, read_rows, sync_folder
from ajet.record.plain import dumps
from ajet.record.secrets import Redactor
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError

NAME = re.compile(r"step-(\d+)(?:\.(\w+))?\.jsonl")


class EpisodeFiles:
    """The episodes of one run. Training's are in `step-N.jsonl`, another split's in `step-N.SPLIT.jsonl`."""

    def __init__(self, folder: Path, redact: Redactor | None = None) -> None:
        self.folder = folder
        self._redact = redact or Redactor({})

    def path(self, step: int, split: str = "train") -> Path:
        """The line file of a step; the blob has the suffix `.bin`."""
        return self.folder / (f"step-{step}.jsonl" if split == "train" else f"step-{step}.{split}.jsonl")

    def write(
        self, step: int, split: str, episodes: Iterable[Episode], *, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Append episodes to a step, with `notes` as further keys of their lines. On return they are on the disk.
        Raises UserError when it is full."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with full_disk.explained(f"the episodes of step {step}", self.folder, kept="earlier steps are whole"):
            path = self.path(step, split)
            heal(path)
            end = max((row["blob"]["offset"] + row["blob"]["length"] for row in read_rows(path)), default=0)
            append_lines(path, self._append_blobs(path.with_suffix(".bin"), end, episodes, notes or {}))
            sync_folder(self.folder)

    def _append_blobs(self, path: Path, end: int, episodes: Iterable[Episode], notes: Mapping[str, Any]) -> list[str]:
        """Write the arrays from byte `end` on, put them on the disk, and answer the lines to go with them."""
        lines = []
        with path.open("ab") as file:
            file.truncate(end)
            for episode in episodes:
                row, raw = encode(episode)
                row |= notes
                packed = zlib.compress(raw, 6)
                row["blob"] = {"offset": end, "length": len(packed), "crc32": zlib.crc32(packed)}
                end += file.write(packed)
                lines.append(self._redact(dumps(row)))
            file.flush()
            os.fsync(file.fileno())
        return lines

    def read(self, step: int, split: str = "train") -> list[Episode]:
        """The episodes of a step in the order written; [] when none are recorded. Raises UserError for damage."""
        return list(read_episodes(self.path(step, split)))

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


def read_episodes(path: Path) -> Iterator[Episode]:
    """The episodes of one line file, whose blob lies beside it."""
    rows = list(read_rows(path))
    if not rows:
        return
    blob = path.with_suffix(".bin").read_bytes()
    for number, row in enumerate(rows, 1):
        yield decode(row, unpack(blob, row["blob"], f"{path}:{number}"))


def unpack(blob: bytes, place: dict[str, Any], where: str) -> bytes:
    packed = blob[place["offset"] : place["offset"] + place["length"]]
    if len(packed) != place["length"] or zlib.crc32(packed) != place["crc32"]:
        raise UserError(
            "The arrays of a recorded episode are damaged (wrong checksum).",
            where=where,
            expected=f"{place['length']} bytes at {place['offset']} in the .bin file beside it",
            do="restore the file from a copy",
        )
    return zlib.decompress(packed)
