"""EpisodeRecording: writes the episodes of `ajet serve` without training, and of `ajet observe`.

Invariant: an acknowledged episode is on the disk, once. Episodes in progress at the server's end are written before it
exits. `BLOCK` episodes share a file and a row of metrics.
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
"""Number of episodes per file and row of metrics."""


class EpisodeRecording:
    """Writes the episodes of one run and their metrics, as a server without training needs it. Thread-safe."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._block_number = 0
        self._block: list[Episode] = []
        self._full_blocks: list[tuple[int, list[Episode]]] = []
        self._written_uuids: set[str] = set()
        """Uuids of written episodes not yet passed to `record_missing`."""

    def put(self, lease: Lease, kept: Kept) -> None:
        """Write an ended episode to the record. It is on the disk on return, and may then be acknowledged.

        After UserError or OSError the same call may be repeated.

        Args:
            lease: Lease of the task, not used here.
            kept: Holds the episode.
        """
        with self._lock:
            self._write_episode(kept.episode)
            self._written_uuids.add(kept.episode.uuid)

    def record_missing(self, episodes: Iterable[Episode]) -> None:
        """Write those of the ended episodes that `put` has not written. Raises UserError or OSError."""
        with self._lock:
            for episode in episodes:
                if episode.uuid in self._written_uuids:
                    self._written_uuids.remove(episode.uuid)
                else:
                    self._write_episode(episode)

    def log_metrics(self, *, is_last: bool = False) -> None:
        """Write one row of metrics for each complete block of episodes.

        A row that fails is written with the next call.

        Args:
            is_last: True to write the incomplete block too.
        """
        with self._lock:
            if is_last and self._block:
                self._close_block()
            full, self._full_blocks = self._full_blocks, []
            for number, (step, block) in enumerate(full):
                try:
                    self._run.metrics.log(step, episode_metrics(block, "debug"))
                except (UserError, OSError) as error:
                    self._full_blocks = full[number:]
                    logger.warning("the metrics of recorded episodes cannot be written ({}): {}", step, error)
                    return

    def _write_episode(self, episode: Episode) -> None:
        """Write an episode to the present block's file, and close a full block."""
        self._run.episodes.write(self._block_number, "debug", [episode])
        self._block.append(episode)
        if len(self._block) >= BLOCK:
            self._close_block()

    def _close_block(self) -> None:
        """Begin a new block. The old one waits for its metrics row."""
        self._full_blocks.append((self._block_number, self._block))
        self._block, self._block_number = [], self._block_number + 1
