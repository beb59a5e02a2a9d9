"""Where the chain of a run says that an episode, a task or a step lies.

Invariant: nothing but the chain is read, by searching its bytes, so that the answer among a million episodes takes a
fraction of a second; what a resume has forgotten is not found. What was recorded without a chain is not there.
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
from ajet.record.bounded_json import parse_object
from ajet.record.chain import FILE, LinkedLine, LinkedLines
from ajet.schema.errors import UserError
from ajet_proof.auditing.chain_state import parse_episode_step

_HEAD = re.compile(rb'\{"link": (\d+), "kind": "(\w+)", "step": (-?\d+)')


@dataclass(frozen=True, slots=True)
class EpisodeLineLocation:
    """A line of an episode file, as its link has it."""

    link: int
    start: int
    """Which start of the run wrote it: the number of its link."""
    file: str
    number: int
    """Of the line, from 1."""
    at: int
    blob_at: int
    line: LinkedLine


class _LinkHead(NamedTuple):
    """The beginning of a link: what is known of it without its episodes."""

    at: int
    """The byte."""
    link: int
    kind: str
    step: int


def _get_offset(head: _LinkHead) -> int:
    return head.at


class ChainIndex:
    """Finds episodes, tasks and steps in the chain of one run; a context manager. Without a chain nothing is found."""

    def __init__(self, folder: Path) -> None:
        self._path = path = folder / FILE
        self._file = open_record_file(path) if has_record_file(path) and path.stat().st_size else None
        self._text: Any = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if self._file else b""
        self._complete_end = self._text.rfind(b"\n") + 1
        """Where an unfinished last link begins."""
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
        """The lines of the episodes whose uuid begins so."""
        needle = b'["' + json.dumps(beginning, ensure_ascii=False).encode()[1:-1]
        return self._find_lines(needle, lambda line: line.uuid.startswith(beginning))

    def find_task(self, task_id: str) -> list[EpisodeLineLocation]:
        """The lines of a task."""
        needle = b'", ' + json.dumps(task_id, ensure_ascii=False).encode() + b", "
        return self._find_lines(needle, lambda line: line.task == task_id)

    def find_step(self, step: int) -> tuple[int | None, list[EpisodeLineLocation]]:
        """The link that committed a training step, and what it holds of its file."""
        found = self._find_step_head(step)
        if found is None:
            return None, []
        file = f"step-{step}.jsonl"
        return found.link, [each for each in self._read_lines_at(found.at) if each.file.endswith(f"/{file}")]

    def find_step_link(self, step: int) -> int | None:
        """The number of a step's link; None where there is none."""
        found = self._find_step_head(step)
        return found.link if found is not None else None

    def list_row_digests(self, step: int) -> list[str]:
        """The digests of the rows of metrics in a step's link."""
        found = self._find_step_head(step)
        return [str(digest) for digest in self._parse_link(found.at).get("rows", ())] if found is not None else []

    def list_checkpoints(self) -> list[tuple[int, int]]:
        """The step and the link of each checkpoint that was saved."""
        found = [head for head in self._heads if head.kind == "checkpoint"]
        return [(head.step, head.link) for head in found if self._is_retained(head.at, head.step)]

    def read_start(self, link: int) -> dict[str, Any]:
        """The content of the link of a start; {} for none."""
        return self._parse_link(self._starts[link]) if link in self._starts else {}

    def list_settings(self) -> list[tuple[int, str]]:
        """For each start, in their order: the step that it went on after, and the digest of its resolved.yaml."""
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
        """All lines in the link around byte `at`."""
        begin, _ = self._find_line_bounds(at)
        number = self._heads[bisect_left(self._heads, begin, key=_get_offset)].link
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
                f"A link of the chain is damaged: {error}.",
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
        """Whether no later resume has forgotten what a link says of `step`."""
        return all(resume < at or after >= step for resume, after in self._resumes)

    def _read_heads(self) -> Iterator[_LinkHead]:
        """The beginnings of all links, in order, without their episodes."""
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
