"""Where the chain of a run says that an episode, a task or a step lies.

Invariant: nothing but the chain is read, by searching its bytes, so that the answer among a million episodes takes a
fraction of a second; what a resume has forgotten is not found. What was recorded without a chain is not there.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.record.bounded_json import parse_object
from ajet.record.chain import FILE, LinkedLine, LinkedLines
from ajet.record.chain_state import step_of

_HEAD = re.compile(rb'\{"link": (\d+), "kind": "(\w+)", "step": (-?\d+)')


@dataclass(frozen=True, slots=True)
class Found:
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


class ChainIndex:
    """Of one run; a context manager. Without a chain nothing is found."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        self._file = path.open("rb") if path.exists() and path.stat().st_size else None
        self._text: Any = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if self._file else b""
        self._starts = [self._head(at)[0] for at in self._all(b'"kind": "start", ')]
        self._resumes = [(at, self._head(at)[2]) for at in self._all(b'"kind": "resume", ')]

    def __enter__(self) -> ChainIndex:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._text.close()
            self._file.close()

    def episode(self, beginning: str) -> list[Found]:
        """The lines of the episodes whose uuid begins so."""
        needle = b'["' + json.dumps(beginning, ensure_ascii=False).encode()[1:-1]
        return self._found(needle, lambda line: line.uuid.startswith(beginning))

    def task(self, task_id: str) -> list[Found]:
        """Those of a task."""
        needle = b'", ' + json.dumps(task_id, ensure_ascii=False).encode() + b", "
        return self._found(needle, lambda line: line.task == task_id)

    def step(self, step: int) -> tuple[int | None, list[Found]]:
        """The link that committed a training step, and what it holds of its file."""
        at = next((at for at in self._all(f'"kind": "step", "step": {step}, '.encode()) if self._holds(at, step)), None)
        if at is None:
            return None, []
        file = f"step-{step}.jsonl"
        return self._head(at)[0], [each for each in self._lines(at) if each.file.endswith(f"/{file}")]

    def checkpoints(self) -> list[tuple[int, int]]:
        """Of each checkpoint that was saved: the step and the link."""
        found = [(at, self._head(at)) for at in self._all(b'"kind": "checkpoint", ')]
        return [(step, link) for at, (link, _, step) in found if self._holds(at, step)]

    def start(self, link: int) -> dict[str, Any]:
        """What the link of a start says; {} for none."""
        at = self._text.find(f'{{"link": {link}, "kind": "start", '.encode())
        return self._link(at) if at >= 0 else {}

    def _found(self, needle: bytes, wanted: Any) -> list[Found]:
        found: list[Found] = []
        end = 0
        while (at := self._text.find(needle, end)) >= 0:
            found += [each for each in self._lines(at) if wanted(each.line)]
            end = self._text.find(b"\n", at) + 1
            if not end:
                break
        return found

    def _lines(self, at: int) -> Iterator[Found]:
        """All that stands in the link around byte `at`."""
        number, _, _ = self._head(at)
        start = max((link for link in self._starts if link <= number), default=0)
        for told in self._link(at).get("episodes", ()):
            lines = LinkedLines.of(told)
            if not self._holds(at, step_of(lines.file)):
                continue
            for nth, (line, here, blob_at) in enumerate(lines.places(), lines.first):
                yield Found(number, start, lines.file, nth, here, blob_at, line)

    def _holds(self, at: int, step: int) -> bool:
        """Whether no later resume has forgotten what a link says of `step`."""
        return all(resume < at or after >= step for resume, after in self._resumes)

    def _all(self, needle: bytes) -> Iterator[int]:
        at = self._text.find(needle)
        while at >= 0:
            yield at
            at = self._text.find(needle, at + 1)

    def _line(self, at: int) -> tuple[int, int]:
        end = self._text.find(b"\n", at)
        return self._text.rfind(b"\n", 0, at) + 1, len(self._text) if end < 0 else end

    def _head(self, at: int) -> tuple[int, str, int]:
        begin, _ = self._line(at)
        found = _HEAD.match(self._text[begin : begin + 100])
        return (int(found[1]), found[2].decode(), int(found[3])) if found else (0, "", -1)

    def _link(self, at: int) -> dict[str, Any]:
        begin, end = self._line(at)
        return parse_object(self._text[begin:end])
