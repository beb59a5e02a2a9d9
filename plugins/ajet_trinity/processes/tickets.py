"""The tasks read by Trinity's explorer: tickets, with a task each.

Invariant: a ticket is only a number, counted from 0 in each launch. The run's own process assigns the task at play
time. The number of tickets equals the need of the remaining steps.
"""

from __future__ import annotations

from typing import Any

from trinity.buffer.buffer_reader import BufferReader
from trinity.common.workflows import Task

from ajet_trinity.processes.here import load_context
from ajet_trinity.processes.workflow import Episodes


class Tickets(BufferReader):
    """Implements Trinity's `storage_type` of the task set."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._next = 0
        self._end = (load_context().total - load_context().begun) * config.batch_size

    async def read(self, batch_size: int | None = None, **kwargs: Any) -> list[Task]:
        """Return the tickets of a step. Raises StopAsyncIteration after the last."""
        if self._next >= self._end:
            raise StopAsyncIteration
        first = self._next
        self._next += batch_size or self._config.batch_size
        return [self._build_task(ticket) for ticket in range(first, self._next)]

    def __len__(self) -> int:
        return self._end

    def state_dict(self) -> dict[str, int]:
        """Return no position: tickets restart in each launch."""
        return {"current_index": 0}

    def load_state_dict(self, state_dict: Any) -> None: ...

    def _build_task(self, ticket: int) -> Task:
        config = self._config
        return Task(
            workflow=Episodes,
            raw_task={"ticket": ticket},
            repeat_times=config.repeat_times,
            format_args=config.format,
            rollout_args=config.rollout_args,
            workflow_args=config.workflow_args,
            index={"index": ticket},
        )
