"""EpisodeWriter: episodes put on the disk one by one as they end, in a thread of its own.

Invariant: what is played waits for no disk; whatever ended while the disk was waited for goes into the next write
together. A write that failed is raised by the next `put`, or by `close`, and nothing is written after it.
"""

from __future__ import annotations

import queue
import threading
from types import TracebackType

from ajet.record.episodes import EpisodeFiles
from ajet.schema.episode import Episode


class EpisodeWriter:
    """Writes episodes to one file; a context manager."""

    def __init__(self, files: EpisodeFiles, step: int, split: str) -> None:
        self._files, self._step, self._split = files, step, split
        self._queue: queue.SimpleQueue[Episode | None] = queue.SimpleQueue()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="ajet-episodes", daemon=True)
        self._thread.start()

    def put(self, episode: Episode) -> None:
        """Write it soon. Raises what an earlier write failed with: UserError or OSError."""
        if self._problem is not None:
            raise self._problem
        self._queue.put(episode)

    def close(self) -> None:
        """Returns when all is on the disk. Raises UserError or OSError. Idempotent."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if self._problem is not None:
            raise self._problem

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        more = True
        while more:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            more = None not in waiting
            try:
                if ended := [episode for episode in waiting if episode is not None]:
                    self._files.write(self._step, self._split, ended)
            except Exception as problem:  # noqa: BLE001 - raised where the episodes come from
                self._problem = problem
                return
