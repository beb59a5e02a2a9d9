"""Finds episodes, tasks and steps in a run's chain.

A chain's entries are called links. Invariant: only the chain file is read, by searching its bytes: a lookup among a
million episodes takes a fraction of a second. Links of steps that a later resume discarded are skipped.
"""

from __future__ import annotations

import json
import mmap
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ajet.config.record_file import has_record_file, open_record_file
from ajet.record.chain import FILE, LinkedLine, LinkedLines
from ajet.record.files import parse_object
from ajet.schema.errors import UserError
from ajet_proof.auditing.chain_state import parse_episode_step

_HEAD = re.compile(rb'\{"link": (\d+), "kind": "(\w+)", "step": (-?\d+)')


@dataclass(frozen=True, slots=True)
class EpisodeLineLocation:
    """Where an episode's line and arrays lie in the run's files, according to the chain."""

    link: int
    """Number of the link that lists the line."""
    start: int
    """Number of the link written at the start of the process that recorded the episode."""
    file: str
    number: int  # line number, from 1
    at: int
    """Byte offset of the line in its file."""
    blob_at: int
    """Byte offset of the episode's arrays in the `.bin` file."""
    line: LinkedLine


class _LinkHead(NamedTuple):
    """The first fields of a link, without the episodes that it lists."""

    at: int  # byte offset
    link: int
    kind: str
    step: int


class ChainIndex:
    """Searches one run's chain, used as a context manager. A run without a chain gives no results."""

    def __init__(self, folder: Path) -> None:
        """Map the chain of the run in `folder` into memory, and read the first fields of its links."""
        self._path = path = folder / FILE
        self._file = open_record_file(path) if has_record_file(path) and path.stat().st_size else None
        self._text: Any = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if self._file else b""
        self._complete_end = self._text.rfind(b"\n") + 1
        """Byte offset after the last complete link; a killed process may have left part of a link behind it."""
        self._heads = list(self._read_heads())
        self._start_offsets = {head.link: head.at for head in self._heads if head.kind == "start"}
        self._resume_offsets = [(head.at, head.step) for head in self._heads if head.kind == "resume"]

    def __enter__(self) -> ChainIndex:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._text.close()
            self._file.close()

    def find_episode(self, beginning: str) -> list[EpisodeLineLocation]:
        """Return the locations of episodes whose uuid begins with these letters."""
        # A link lists an episode as `["uuid", "task", ...]`.
        needle = b'["' + json.dumps(beginning, ensure_ascii=False).encode()[1:-1]
        return self._find_lines(needle, lambda line: line.uuid.startswith(beginning))

    def find_task(self, task_id: str) -> list[EpisodeLineLocation]:
        """Return the locations of all episodes of a task."""
        needle = b'", ' + json.dumps(task_id, ensure_ascii=False).encode() + b", "
        return self._find_lines(needle, lambda line: line.task == task_id)

    def find_step(self, step: int) -> tuple[int | None, list[EpisodeLineLocation]]:
        """Return the link number of a training step (None if absent), and the locations of its episodes."""
        head = self._find_step_head(step)
        if head is None:
            return None, []
        file = f"step-{step}.jsonl"
        # The link may also list episodes of a validation, which were not trained.
        return head.link, [location for location in self._read_lines_at(head.at) if location.file.endswith(f"/{file}")]

    def find_step_link(self, step: int) -> int | None:
        """Return the link number of a training step, or None if the chain does not have the step."""
        head = self._find_step_head(step)
        return head.link if head is not None else None

    def list_row_digests(self, step: int) -> list[str]:
        """Return the digests of the rows of metrics.jsonl that a step's link lists."""
        head = self._find_step_head(step)
        return [str(digest) for digest in self._parse_link(head.at).get("rows", ())] if head is not None else []

    def list_checkpoints(self) -> list[tuple[int, int]]:
        """Return (step, link) of each saved checkpoint."""
        heads = [head for head in self._heads if head.kind == "checkpoint"]
        return [(head.step, head.link) for head in heads if self._is_retained(head.at, head.step)]

    def read_start(self, link: int) -> dict[str, Any]:
        """Return the content of the link that a process wrote at its start, or {} if `link` is no such link."""
        return self._parse_link(self._start_offsets[link]) if link in self._start_offsets else {}

    def list_settings(self) -> list[tuple[int, str]]:
        """Return the settings of each launch of the run, in order.

        Returns:
            Pairs of the last step before the launch and the digest of its resolved.yaml.
        """
        starts = (self._parse_link(offset) for offset in self._start_offsets.values())
        return [(int(start["step"]), str(start.get("files", {}).get("resolved.yaml", ""))) for start in starts]

    def _find_lines(self, needle: bytes, is_wanted: Any) -> list[EpisodeLineLocation]:
        """Return the locations of the wanted episodes, in all links that contain some bytes.

        Args:
            needle: bytes that the JSON of a wanted episode contains; a fast search for them replaces parsing all links.
            is_wanted: decides by an episode's `LinkedLine` whether it is wanted.
        """
        locations: list[EpisodeLineLocation] = []
        end = 0
        while (offset := self._text.find(needle, end, self._complete_end)) >= 0:
            locations += [location for location in self._read_lines_at(offset) if is_wanted(location.line)]
            end = self._text.find(b"\n", offset) + 1
            if not end:
                break
        return locations

    def _read_lines_at(self, offset: int) -> Iterator[EpisodeLineLocation]:
        """Yield the locations of all episodes that a link lists.

        Args:
            offset: any byte offset within the link in the chain file.
        """
        begin, _ = self._find_line_bounds(offset)
        number = self._heads[bisect_left(self._heads, begin, key=lambda head: head.at)].link
        start = max((link for link in self._start_offsets if link <= number), default=0)
        try:
            line_blocks = [LinkedLines.of(block) for block in self._parse_link(offset).get("episodes", ())]
            offsets_by_block = [
                (lines, list(lines.places()))
                for lines in line_blocks
                if self._is_retained(offset, parse_episode_step(lines.file))
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"An entry of the chain (the run's record of file digests) is damaged: {error}.",
                where=f"{self._path}, link {number}",
                do="restore the file from a copy",
            ) from error
        for lines, line_offsets in offsets_by_block:
            for line_number, (line, line_offset, blob_at) in enumerate(line_offsets, lines.first):
                yield EpisodeLineLocation(number, start, lines.file, line_number, line_offset, blob_at, line)

    def _find_step_head(self, step: int) -> _LinkHead | None:
        """Return the first fields of a training step's link, or None if the chain lacks the step or a resume discarded
        it."""
        step_heads = (head for head in self._heads if (head.kind, head.step) == ("step", step))
        return next((head for head in step_heads if self._is_retained(head.at, step)), None)

    def _is_retained(self, offset: int, step: int) -> bool:
        """True if no later resume discarded the step of a link.

        Args:
            offset: byte offset of the link.
            step: its step.
        """
        return all(
            resume_offset < offset or resumed_step >= step for resume_offset, resumed_step in self._resume_offsets
        )

    def _read_heads(self) -> Iterator[_LinkHead]:
        """Yield the first fields of all links, in order. A link that cannot be parsed has the number 0 and no kind."""
        offset = 0
        while (end := self._text.find(b"\n", offset)) >= 0:
            # The fields end within 100 bytes: three short values at the start of the link.
            match = _HEAD.match(self._text[offset : offset + 100])
            yield (
                _LinkHead(offset, int(match[1]), match[2].decode(), int(match[3]))
                if match
                else _LinkHead(offset, 0, "", -1)
            )
            offset = end + 1

    def _find_line_bounds(self, offset: int) -> tuple[int, int]:
        """Return the byte offsets (start, end) of the chain's line that contains the offset `offset`."""
        end = self._text.find(b"\n", offset)
        return self._text.rfind(b"\n", 0, offset) + 1, len(self._text) if end < 0 else end

    def _parse_link(self, offset: int) -> dict[str, Any]:
        """Parse the link that contains the byte offset `offset`. Raises ValueError if it is damaged."""
        begin, end = self._find_line_bounds(offset)
        return parse_object(self._text[begin:end])
