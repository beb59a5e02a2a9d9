"""Reads the episodes of a run as table rows, in the background and only once, newest step first.

Invariant: a row holds the displayed values and the place of its line, never the line, so 100,000 episodes fit into
memory. A grown file is read from its last position, a cut or replaced file from the start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.config.record_file import RecordFileError, list_record_folder, open_record_file, read_record_part
from ajet.record.episodes import NAME
from ajet.record.files import next_line, parse_object
from ajet.record.image_text import last_words, text_of

QUERY = 160
"""Maximum number of characters of a question or an answer in a row."""


@dataclass(frozen=True, slots=True)
class EpisodeLinePlace:
    """Where the JSON line of an episode is: a file, and the byte offset and length of the line."""

    path: Path
    offset: int
    length: int


@dataclass(slots=True)
class _EpisodeFile:
    """An episode file and the rows read from it so far."""

    path: Path
    step: int
    split: str
    inode: int = 0
    end: int = 0
    rows: list[tuple[dict[str, Any], EpisodeLinePlace]] = field(default_factory=list)
    damaged: int = 0


class EpisodeTable:
    """Keeps a table row for each episode of one run, and reads new ones. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Open the table of the run in `folder`. Nothing is read yet."""
        self.folder = folder / "episodes"
        self._files: dict[str, _EpisodeFile] = {}
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self.pending = 0
        """Number of changed files that the background thread has not read yet."""

    def read_new_rows(self, wait: float | None = 0.5) -> None:
        """Read new rows in a background thread, and wait for it.

        Args:
            wait: seconds to wait at most, while the thread continues, or None to wait until all is read.
        """
        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                self._reader = threading.Thread(target=self._read_all, daemon=True)
                self._reader.start()
            reader = self._reader
        reader.join(wait)

    @property
    def is_complete(self) -> bool:
        """True if the background thread has read all changed files."""
        return self.pending == 0

    def rows(self) -> Iterator[tuple[dict[str, Any], EpisodeLinePlace]]:
        """Yield each row with the place of its episode's line, newest step first, in file order within a step."""
        with self._lock:
            files = sorted(self._files.values(), key=lambda file: (file.step, file.split), reverse=True)
        for file in files:
            yield from list(file.rows)

    def find(self, uuid: str) -> tuple[dict[str, Any], EpisodeLinePlace] | None:
        """Return the row of an episode and the place of its line, or None.

        If a resumed run has recorded the episode twice, it is the row in the file of the later step.
        """
        return next((row_and_place for row_and_place in self.rows() if row_and_place[0]["uuid"] == uuid), None)

    @property
    def damaged(self) -> int:
        """Number of lines that cannot be read as an episode."""
        with self._lock:
            return sum(file.damaged for file in self._files.values())

    def _read_all(self) -> None:
        """Read the new rows of all changed files, newest step first. Runs in the background thread."""
        try:
            paths = {name: self.folder / name for name in list_record_folder(self.folder) if NAME.fullmatch(name)}
        except OSError:
            paths = {}
        with self._lock:
            for removed in self._files.keys() - paths.keys():
                del self._files[removed]
            for name, path in paths.items():
                match = NAME.fullmatch(name)
                if name not in self._files and match:
                    self._files[name] = _EpisodeFile(path, int(match[1]), match[2] or "train")
            newest_first = sorted(self._files.values(), key=lambda file: file.step, reverse=True)
        changed_files = [file for file in newest_first if _has_changed(file)]
        self.pending = len(changed_files)
        for file in changed_files:
            _read_new_lines(file)
            self.pending -= 1


def _has_changed(file: _EpisodeFile) -> bool:
    """True if a file was replaced, or has another size than what was read of it."""
    try:
        status = file.path.lstat()
    except OSError:
        return False
    return status.st_ino != file.inode or status.st_size != file.end


def _read_new_lines(file: _EpisodeFile) -> None:
    """Read the complete lines that were appended to an episode file, and add their rows.

    A cut or replaced file is read from its start. A line that is no episode is counted in `damaged`.
    """
    try:
        with open_record_file(file.path) as stream:
            status = os.fstat(stream.fileno())
            if status.st_ino != file.inode or status.st_size < file.end:
                file.inode = status.st_ino
                file.end = 0
                file.rows = []
                file.damaged = 0
            stream.seek(file.end)
            while True:
                try:
                    line = next_line(stream)
                except ValueError:  # the rest of the file is not searched
                    file.damaged, file.end = file.damaged + 1, status.st_size
                    break
                if not line.endswith(b"\n"):
                    break
                line_place = EpisodeLinePlace(file.path, file.end, len(line))
                file.end += len(line)
                try:
                    file.rows.append((build_table_row(parse_object(line), file.step), line_place))
                except (ValueError, KeyError, TypeError, AttributeError):
                    file.damaged += 1
    except RecordFileError:
        status = file.path.lstat()  # the file is read again only after it was replaced or changed
        file.inode = status.st_ino
        file.end = status.st_size
        file.rows = []
        file.damaged = 1
    except OSError:
        return


def build_table_row(line: dict[str, Any], step: int) -> dict[str, Any]:
    """Build the table row of an episode.

    Args:
        line: the episode's JSON line.
        step: the step in the name of its file.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: the line is no episode.
    """
    outcome = line.get("outcome") or {}
    calls, verdict, failure = line["calls"], line.get("verdict") or {}, line.get("failure") or {}
    task = line["task"]
    query = task.get("main_query") or next((text_of(message.get("content")) for message in line["messages"]), "")
    row = {
        "uuid": line["uuid"],
        "step": step,
        "split": line["split"],
        "task": task.get("task_id", ""),
        "query": query[:QUERY],
        "answer": last_words(line["messages"])[:QUERY],
        "repeat": line["repeat"],
        "status": line["status"],
        "reward": verdict.get("reward"),
        "success": verdict.get("success"),
        "advantage": outcome.get("advantage"),
        "calls": len(calls),
        "tokens": sum(stop - start for start, stop in (call["response_ids"] for call in calls)),
        "forks": sum(call.get("fork") is not None for call in calls),
        "agents": sorted({call["agent"] for call in calls}),
        "failure": f"{failure['boundary']}: {failure['kind']}" if failure else "",
        "checks": line.get("checks", []),
        "started": line.get("started", 0.0),
        "seconds": line.get("ended", 0.0) - line.get("started", 0.0),
    }
    for name, required_type in _KINDS.items():
        if not isinstance(row[name], required_type):
            raise TypeError(f"{name} is a {type(row[name]).__name__}")
    return row


_NUMBER = (int, float)
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("uuid", "split", "task", "query", "answer", "status"), str),
    "repeat": int,
    **dict.fromkeys(("tokens", "started", "seconds"), _NUMBER),
    **dict.fromkeys(("reward", "advantage"), (*_NUMBER, type(None))),
    **dict.fromkeys(("agents", "checks"), list),
}
"""Required types of the columns that filters and sorting use."""


def read_line(place: EpisodeLinePlace) -> bytes:
    """Read the JSON line of an episode. Raises OSError if its file is gone."""
    with open_record_file(place.path) as file:
        return read_record_part(file, place.offset, place.length)
