"""The task set that Trinity's explorer reads: numbered tickets, each a claim on one group.

Invariant: a ticket is only a number, counted from 0 in each launch. The run's own process assigns the task when the
group's episodes are about to run. The number of tickets is what the remaining steps need.
"""

from __future__ import annotations

from typing import Any

from trinity.buffer.buffer_reader import BufferReader
from trinity.common.workflows import Task

from ajet_trinity.processes.here import load_context
from ajet_trinity.processes.workflow import Episodes


class Tickets(BufferReader):
    """Trinity's reader of the task set (`storage_type`), which returns tickets instead of tasks."""

    def __init__(self, config: Any) -> None:
        """Compute the number of tickets that the launch's steps need. `config` is Trinity's config of the task set."""
        self._config = config
        self._next = 0
        # A resumed launch needs tickets for the remaining steps only.
        self._end_ticket = (load_context().total - load_context().begun) * config.batch_size

    async def read(self, batch_size: int | None = None, **kwargs: Any) -> list[Task]:
        """Return the tickets of the next step, as Trinity tasks. Raises StopAsyncIteration after the last step."""
        if self._next >= self._end_ticket:
            raise StopAsyncIteration
        first = self._next
        self._next += batch_size or self._config.batch_size
        return [self._build_task(ticket) for ticket in range(first, self._next)]

    def __len__(self) -> int:
        """Return the number of tickets of this launch."""
        return self._end_ticket

    def state_dict(self) -> dict[str, int]:
        """Return a constant state, because tickets are counted from 0 in each launch."""
        return {"current_index": 0}

    def load_state_dict(self, state_dict: Any) -> None:
        """Ignore the state of an earlier launch. Trinity requires the method."""

    def _build_task(self, ticket: int) -> Task:
        """Build the Trinity task that runs the group of a ticket."""
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
