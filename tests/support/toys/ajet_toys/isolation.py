"""All attempts one after another, in a thread."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from ajet.rollout.attempt import perform_attempt


class ToyIsolation:
    shares_loop, is_remote = True, False
    abandoned_count = 0
    played = 0

    @classmethod
    def create(cls, experiment, workflow_class, ambient):
        return cls()

    def __init__(self):
        self._pool = ThreadPoolExecutor(1)

    def start(self, attempt):
        ToyIsolation.played += 1
        return self._pool.submit(asyncio.run, perform_attempt(attempt))

    def locate(self, attempt):
        return ""

    def stop(self, attempt):
        """A toy's attempts end by themselves."""

    def close(self):
        self._pool.shutdown()
