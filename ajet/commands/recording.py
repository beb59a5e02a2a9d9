"""Recording: what `ajet serve` keeps where nothing is trained.

Invariant: an episode whose end was acknowledged is on the disk, once; one whose end came with the server's is written
before the server has ended. `BLOCK` of them share a file and a row of metrics.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from loguru import logger

from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from ajet.train.accounting import episode_metrics

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.store import Kept, Lease

BLOCK = 200
"""Episodes of one file and one row of metrics."""


class Recording:
    """The record of one run, as its rollout writes it."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._number = 0
        self._block: list[Episode] = []
        self._full: list[tuple[int, list[Episode]]] = []
        self._written: set[str] = set()
        """Of those that `rest` has not seen."""

    def put(self, lease: Lease, kept: Kept) -> None:
        """Write one. Raises UserError or OSError; then it may be put again. Thread-safe."""
        with self._lock:
            self._write(kept.episode)
            self._written.add(kept.episode.uuid)

    def rest(self, episodes: Iterable[Episode]) -> None:
        """Record the episodes that came out of the desk: what is not written yet, which is what ended with the server,
        is now. Raises UserError or OSError."""
        with self._lock:
            for episode in episodes:
                if episode.uuid in self._written:
                    self._written.remove(episode.uuid)
                else:
                    self._write(episode)

    def measure(self, *, last: bool = False) -> None:
        """Write the metrics of the blocks that are full, with `last` of all. One that cannot be written is tried again
        with the next."""
        with self._lock:
            if last and self._block:
                self._close_block()
            full, self._full = self._full, []
            for number, (step, block) in enumerate(full):
                try:
                    self._run.metrics.log(step, episode_metrics(block, "debug"))
                except (UserError, OSError) as error:
                    self._full = full[number:]
                    logger.warning("the metrics of episodes {} cannot be written: {}", step, error)
                    return

    def _write(self, episode: Episode) -> None:
        self._run.episodes.write(self._number, "debug", [episode])
        self._block.append(episode)
        if len(self._block) >= BLOCK:
            self._close_block()

    def _close_block(self) -> None:
        self._full.append((self._number, self._block))
        self._block, self._number = [], self._number + 1
