"""WholeSteps: how Trinity's trainer takes its batches out of the queue.

Invariant: one training step is one explorer step, however many rows that has.
"""

from __future__ import annotations

from typing import Any

from trinity.algorithm.sample_strategy.sample_strategy import DefaultSampleStrategy
from trinity.common.experience import Experience


class WholeSteps(DefaultSampleStrategy):
    """`algorithm.sample_strategy`."""

    async def sample(self, step: int, **kwargs: Any) -> tuple[list[Experience], dict[str, Any], list[Any]]:
        """The rows of the step: the first says how many there are."""
        taken = await self.exp_buffer.read(batch_size=1)
        rest = taken[0].info["ajet_rows"] - 1
        if rest:
            taken += await self.exp_buffer.read(batch_size=rest)
        played = int(taken[0].eid.batch)
        if played != step or any(int(each.eid.batch) != played for each in taken):
            raise ValueError(f"step {step} was given rows of step {played}")
        return taken, {}, []
