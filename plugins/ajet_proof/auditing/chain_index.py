"""Find episodes, tasks and steps in a run's chain.

Invariant: only the chain file is read, by searching its bytes: a lookup among a million episodes takes a fraction of a
second. Links forgotten by a resume are skipped.
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
    """The location of one episode line, from its link."""

    link: int
    start: int
    """Link number of the run's start."""
    file: str
    number: int  # line number, from 1
    at: int
    blob_at: int
    line: LinkedLine


class _LinkHead(NamedTuple):
    """The head of a link, without its episodes."""

    at: int  # byte offset
    link: int
    kind: str
    step: int


class ChainIndex:
    """An index of one run's chain, used as a context manager. A run without a chain has an empty index."""

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / FILE
        self._file = open_record_file(path) if has_record_file(path) and path.stat().st_size else None
        self._text: Any = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if self._file else b""
        self._complete_end = self._text.rfind(b"\n") + 1
        """Start of an unfinished last link."""
        self._heads = list(self._read_heads())
        self._starts = {head.link: head.at for head in self._heads if head.kind == "start"}
        self._resumes = [(head.at, head.step) for head in self._heads if head.kind == "resume"]

    def __enter__(self) -> ChainIndex:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._text.close()
            self._file.close()

    def find_episode(self, beginning: str) -> list[EpisodeLineLocation]:
        """Return the lines of episodes by the first letters of their uuid."""
        needle = b'["' + json.dumps(beginning, ensure_ascii=False).encode()[1:-1]
        return self._find_lines(needle, lambda line: line.uuid.startswith(beginning))

    def find_task(self, task_id: str) -> list[EpisodeLineLocation]:
        """Return the lines of a task."""
        needle = b'", ' + json.dumps(task_id, ensure_ascii=False).encode() + b", "
        return self._find_lines(needle, lambda line: line.task == task_id)

    def find_step(self, step: int) -> tuple[int | None, list[EpisodeLineLocation]]:
        """Return a training step's link number and the lines of its episode file."""
        found = self._find_step_head(step)
        if found is None:
            return None, []
        file = f"step-{step}.jsonl"
        return found.link, [each for each in self._read_lines_at(found.at) if each.file.endswith(f"/{file}")]

    def find_step_link(self, step: int) -> int | None:
        """Return the link number of a step, or None."""
        found = self._find_step_head(step)
        return found.link if found is not None else None

    def list_row_digests(self, step: int) -> list[str]:
        """Return the digests of the metrics rows in a step's link."""
        found = self._find_step_head(step)
        return [str(digest) for digest in self._parse_link(found.at).get("rows", ())] if found is not None else []

    def list_checkpoints(self) -> list[tuple[int, int]]:
        """Return (step, link) of each saved checkpoint."""
        found = [head for head in self._heads if head.kind == "checkpoint"]
        return [(head.step, head.link) for head in found if self._is_retained(head.at, head.step)]

    def read_start(self, link: int) -> dict[str, Any]:
        """Return the content of a start link, or {}."""
        return self._parse_link(self._starts[link]) if link in self._starts else {}

    def list_settings(self) -> list[tuple[int, str]]:
        """Return (last step before the start, digest of resolved.yaml) for each start, in order."""
        starts = (self._parse_link(at) for at in self._starts.values())
        return [(int(each["step"]), str(each.get("files", {}).get("resolved.yaml", ""))) for each in starts]

    def _find_lines(self, needle: bytes, wanted: Any) -> list[EpisodeLineLocation]:
        found: list[EpisodeLineLocation] = []
        end = 0
        while (at := self._text.find(needle, end, self._complete_end)) >= 0:
            found += [each for each in self._read_lines_at(at) if wanted(each.line)]
            end = self._text.find(b"\n", at) + 1
            if not end:
                break
        return found

    def _read_lines_at(self, at: int) -> Iterator[EpisodeLineLocation]:
        """Yield all lines in the link at byte `at`."""
        begin, _ = self._find_line_bounds(at)
        number = self._heads[bisect_left(self._heads, begin, key=lambda head: head.at)].link
        start = max((link for link in self._starts if link <= number), default=0)
        try:
            written = [LinkedLines.of(block) for block in self._parse_link(at).get("episodes", ())]
            places = [
                (lines, list(lines.places()))
                for lines in written
                if self._is_retained(at, parse_episode_step(lines.file))
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"An entry of the chain (the run's record of file digests) is damaged: {error}.",
                where=f"{self._path}, link {number}",
                do="restore the file from a copy",
            ) from error
        for lines, found in places:
            for nth, (line, here, blob_at) in enumerate(found, lines.first):
                yield EpisodeLineLocation(number, start, lines.file, nth, here, blob_at, line)

    def _find_step_head(self, step: int) -> _LinkHead | None:
        ours = (head for head in self._heads if (head.kind, head.step) == ("step", step))
        return next((head for head in ours if self._is_retained(head.at, step)), None)

    def _is_retained(self, at: int, step: int) -> bool:
        """True if no later resume has forgotten `step` of the link at this byte."""
        return all(resume < at or after >= step for resume, after in self._resumes)

    def _read_heads(self) -> Iterator[_LinkHead]:
        """Yield the heads of all links, in order."""
        at = 0
        while (end := self._text.find(b"\n", at)) >= 0:
            found = _HEAD.match(self._text[at : at + 100])
            yield _LinkHead(at, int(found[1]), found[2].decode(), int(found[3])) if found else _LinkHead(at, 0, "", -1)
            at = end + 1

    def _find_line_bounds(self, at: int) -> tuple[int, int]:
        end = self._text.find(b"\n", at)
        return self._text.rfind(b"\n", 0, at) + 1, len(self._text) if end < 0 else end

    def _parse_link(self, at: int) -> dict[str, Any]:
        begin, end = self._find_line_bounds(at)
        return parse_object(self._text[begin:end])
