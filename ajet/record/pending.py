"""pending/: episodes whose end was acknowledged and that no checkpoint contains yet.

Invariant: on return from `add` the episode is on the disk; it stays until `drop`, which its owner calls only when a
checkpoint that counts it as used is complete. So after a kill at any byte each of them is either in the checkpoint that
a run continues from, or here. One file a group of attempts, in the format of `episodes/`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ajet.record.episodes import EpisodeFiles
from ajet.record.files import read_rows
from ajet.record.secrets import Redactor
from ajet.schema.episode import Episode


@dataclass(frozen=True, slots=True)
class Pending:
    """One of them, with what its end was about."""

    episode: Episode
    number: int
    """Of its group; or its own, where it is `alone`."""
    alone: bool
    """Part of no group: recorded only."""
    source: int | None
    """The place of its task in the task reader's order; None: its client brought the task."""
    ended_by: str


class PendingEpisodes:
    """Those of one run. Thread-safe."""

    def __init__(self, folder: Path, redact: Redactor | None = None) -> None:
        self._files = EpisodeFiles(folder, redact)
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}

    def add(self, pending: Pending) -> None:
        """Keep one. On return it is on the disk; after an error it is not, and may be added again. Raises UserError
        when the disk is full, and OSError."""
        notes = {"alone": pending.alone, "source": pending.source, "ended_by": pending.ended_by}
        with self._lock:
            self._files.write(pending.number, "train", [pending.episode], notes=notes)
            self._numbers[pending.episode.uuid] = pending.number

    def read(self) -> list[Pending]:
        """What an earlier process left, by number, each group in the order in which its attempts ended."""
        found: list[Pending] = []
        with self._lock:
            for number in self._files.steps():
                rows = read_rows(self._files.path(number))
                for row, episode in zip(rows, self._files.read(number), strict=True):
                    found.append(Pending(episode, number, row["alone"], row["source"], row["ended_by"]))
                    self._numbers[episode.uuid] = number
        return found

    def numbers(self, episodes: Iterable[Episode]) -> set[int]:
        """The numbers under which these are kept."""
        with self._lock:
            return {self._numbers[episode.uuid] for episode in episodes if episode.uuid in self._numbers}

    def drop(self, numbers: Iterable[int]) -> None:
        """These are in a checkpoint."""
        gone = set(numbers)
        with self._lock:
            for number in gone:
                path = self._files.path(number)
                path.unlink(missing_ok=True)
                path.with_suffix(".bin").unlink(missing_ok=True)
            self._numbers = {name: number for name, number in self._numbers.items() if number not in gone}
