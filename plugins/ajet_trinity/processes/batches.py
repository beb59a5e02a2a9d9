"""Builds the batches of Trinity's trainer, from the explorer (`ExplorerSteps`) or remote samplers (`StoreGroups`).

Invariants: a training step is one explorer step with any number of rows. Without an explorer a step has the configured
number of scored groups, each removed from the store with the step. Advantages are computed the same way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from trinity.algorithm.sample_strategy.sample_strategy import DefaultSampleStrategy, SampleStrategy
from trinity.common.experience import Experience

from ajet.schema.episode import Group
from ajet_ray.mailbox import GroupNotice, Sender
from ajet_trinity.processes.credit import EpisodeCredit
from ajet_trinity.processes.here import load_context
from ajet_trinity.processes.workflow import build_experiences


class ExplorerSteps(DefaultSampleStrategy):
    """Trinity's `algorithm.sample_strategy` that takes exactly the rows of one explorer step."""

    async def sample(self, step: int, **kwargs: Any) -> tuple[list[Experience], dict[str, Any], list[Any]]:
        """Read the rows of an explorer step from Trinity's buffer.

        Returns:
            The rows, and empty metrics and representatives, as Trinity expects.

        Raises:
            ValueError: the explorer sampled a row for another step.
        """
        # How many rows a step has is known only from its first row.
        experiences = await self.exp_buffer.read(batch_size=1)
        remaining_rows = experiences[0].info["ajet_rows"] - 1
        if remaining_rows:
            experiences += await self.exp_buffer.read(batch_size=remaining_rows)
        batch_step = int(experiences[0].eid.batch)
        if batch_step != step or any(int(experience.eid.batch) != batch_step for experience in experiences):
            raise ValueError(
                f"the trainer is at step {step}, but the explorer sent training rows sampled for step {batch_step}"
            )
        return experiences, {}, []


class StoreGroups(SampleStrategy):
    """Trinity's `algorithm.sample_strategy` that takes groups of remote samplers. Trinity's buffer stays empty."""

    def __init__(self, buffer_config: Any, **kwargs: Any) -> None:
        """Prepare to request groups. Trinity passes its buffer config and arguments."""
        super().__init__(buffer_config)
        self._sender, self._credit = Sender(), EpisodeCredit()
        self._next_ticket = 0
        """The next ticket (claim on a group), counted from 0 in each launch."""

    async def sample(self, step: int, **kwargs: Any) -> tuple[list[Experience], dict[str, Any], list[Any]]:
        """Wait for the step's groups and return their rows with advantages. An unscored group is replaced by another.

        Returns:
            The rows, and empty metrics and representatives, as Trinity expects.
        """
        missing_groups = load_context().experiment.ajet.data.train_batch_size
        rows: list[Experience] = []
        while missing_groups:
            tickets = range(self._next_ticket, self._next_ticket + missing_groups)
            self._next_ticket += missing_groups
            groups = await asyncio.gather(*(self._take_group(ticket, step) for ticket in tickets))
            scored_groups = [group for group in groups if group.scored]
            for group in scored_groups:
                rows += _tag_experiences(group, step)
            missing_groups -= len(scored_groups)
        return (await self._credit.process(rows))[0], {}, []

    async def _take_group(self, ticket: int, step: int) -> Group:
        """Return the group of a ticket from the run's own process, and report that this step takes it."""
        group = (await self._sender.grant(ticket)).group
        if group is None:
            raise RuntimeError(f"step {step}: ticket {ticket} came without its group of attempts")
        await self._sender.post_async(GroupNotice(group, step, ticket))
        return group

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return no default arguments. Trinity requires the method."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return no state: the store records which groups were trained."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Ignore the state, which is always empty. Trinity requires the method."""


def _tag_experiences(group: Group, step: int) -> list[Experience]:
    # A step starts from the policy version of the step before.
    """Convert a group to Trinity's rows, marked with the training step and the task's position."""
    experiences = build_experiences(group, step - 1)
    for experience in experiences:
        experience.eid.batch, experience.eid.task = step, group.order
    return experiences
