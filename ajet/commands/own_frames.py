"""The person's own lines of a traceback, told from the text: everybody else's are counted.

Invariant: a frame is the person's own where its file lies neither among installed packages, nor in Python itself, nor
in ajet's package; in doubt it is. The order is the traceback's: the last own frame is the one to look at.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ajet.config.plugins import list_package_roots

_FRAME = re.compile(r'^[ |+-]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](?P<package>[^/\\.]+)")
_PYTHON = re.compile(r"[/\\]lib[/\\]python3[^/\\]*[/\\]")
_OURS = tuple(f"{root}/" for root in list_package_roots())
_STANDARD = f"{sysconfig.get_paths()['stdlib']}/"


@dataclass(frozen=True, slots=True)
class OwnFrame:
    """A line of the person's code."""

    file: str
    line: int
    function: str
    code: str
    """The line itself; "" where the traceback does not have it."""

    @property
    def place(self) -> str:
        """file:line, as editors and terminals open it; short where it lies below the working directory."""
        path = Path(self.file)
        here = Path.cwd()
        return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Frames:
    """A traceback, taken apart."""

    own: tuple[OwnFrame, ...]
    """Each place once."""
    others: Counter[str]
    """Frames by package: the packages' names, "Python", "ajet"."""


def frames_of(traceback: str) -> Frames:
    """The frames of all exceptions of a chain."""
    own: dict[tuple[str, int], OwnFrame] = {}
    others = Counter[str]()
    for frame in _frames(traceback.splitlines()):
        package = _package(frame.file)
        if package:
            others[package] += 1
        else:
            own[frame.file, frame.line] = frame
    return Frames(tuple(own.values()), others)


def _frames(lines: list[str]) -> Iterator[OwnFrame]:
    for at, line in enumerate(lines):
        if (found := _FRAME.match(line)) is not None:
            code = lines[at + 1].strip(" |") if at + 1 < len(lines) else ""
            if _FRAME.match(lines[at + 1] if at + 1 < len(lines) else "") or not line.startswith(" "):
                code = ""
            yield OwnFrame(found["file"], int(found["line"]), found["function"] or "", code)


def _package(file: str) -> str:
    """The package that a file belongs to; "" for the person's own."""
    if file.startswith(_OURS):
        return "ajet"
    if (installed := _INSTALLED.search(file)) is not None:
        return installed["package"]
    if file.startswith((_STANDARD, "<")) or _PYTHON.search(file):
        return "Python"
    return ""
