"""Host: runs episodes in one of verl's or Trinity's processes, with a gateway, workflow and judge.

Invariant: the host uses the same rollout classes as the other backbones, here in front of verl's inference servers. A
session is verl's request for one sample of a prompt. All sessions of a group run in one process. The first session
runs the episodes of the whole group, so deadlines, retries and limits are the rollout's, and the others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.engine.contract import TokenEngine
from ajet.environment.pinned import ToolPins
from ajet.rollout import Rollout
from ajet.rollout.components import load_workflow, open_gateway
from ajet.schema.episode import Group, Split
from ajet.schema.task import Task
from ajet.task_judge import open_judge
from ajet.task_reader import open_reader
from ajet.tokens.image_tokens import ImageTokens
from ajet_ray.mailbox import GroupNotice, TicketGrant
from ajet_ray.routed_experts import drop_experts

if TYPE_CHECKING:
    from ajet.config import Experiment


@dataclass(slots=True)
class _RunningGroup:
    """A group whose episodes are running, until each of verl's requests for one of them (sessions) waits for it."""

    group: asyncio.Task[Group]
    sessions: int
    """Number of sessions that have not joined the group yet."""


class Host:
    """Runs the episodes of groups in a process. Created once and used until the process ends."""

    def __init__(
        self,
        experiment: Experiment,
        run_id: str,
        engine: TokenEngine,
        tokenizer: Any,
        post: Callable[[GroupNotice], Awaitable[None]],
        grant: Callable[[int], Awaitable[TicketGrant]],
        images: ImageTokens | None = None,
        pins: ToolPins | None = None,
    ) -> None:
        """Open the gateway, the judge and the rollout.

        Args:
            engine: the inference servers that answer the gateway's requests.
            post: sends a finished group to the run's own process, which writes it to disk.
            grant: returns the task of a ticket (the trainer's claim on one group).
            images: encodes images as tokens, or None for a text model.
            pins: checks that every attempt is offered the tools of the run's first attempt.
        """
        self._engine = engine
        self._post_notice = post
        self._grant = grant
        self._gateway = gateway = open_gateway(experiment, engine, tokenizer, images)
        judge = open_judge(experiment, reader_judge=open_reader(experiment).judge)
        self._rollout = Rollout(experiment, gateway, load_workflow(experiment), judge, run_id=run_id, pins=pins)
        self._groups: dict[str, _RunningGroup] = {}

    @property
    def version(self) -> int:
        """The newest policy version that answered a request of this process."""
        return self._engine.version

    def close(self) -> None:
        """End the rollout and the gateway. For tests: verl's processes are killed from outside."""
        self._rollout.close()
        self._gateway.close()

    async def join_group(self, uid: str, index: int, task: Task | None, *, step: int, sessions: int) -> Group:
        """Return verl's group `uid` once its episodes have ended and are sent to the run's own process.

        Each of the group's sessions calls this once. The first call starts the episodes.

        Args:
            index: place of the task among the validation tasks, or the number of the trainer's claim on a group
                (ticket) if `task` is None.
            task: validation task, or None for training, where the ticket determines the task.
            step: training step that requested the group.
            sessions: number of episodes of the group.
        """
        running_group = self._groups.get(uid)
        if running_group is None:
            playing = (
                self._play_training(index, step, sessions)
                if task is None
                else self._play_validation(index, task, step, sessions)
            )
            running_group = self._groups[uid] = _RunningGroup(asyncio.ensure_future(playing), sessions)
        running_group.sessions -= 1
        if not running_group.sessions:  # the last session has joined, and verl may use the uid again
            del self._groups[uid]
        return await running_group.group

    async def play_ticket(self, ticket: int, *, step: int, sessions: int) -> Group:
        """Return the group of a ticket (the trainer's claim on a group) once its episodes have ended.

        By then they are sent to the run's own process. Call this once per ticket.

        Args:
            ticket: number of the ticket.
            step: training step that requested the group.
            sessions: number of episodes of the group.
        """
        return await self._play_training(ticket, step, sessions)

    async def _play_training(self, ticket: int, step: int, sessions: int) -> Group:
        """Return the group of a ticket (the trainer's claim on a group), after sending it to the run's own process.

        If the group was finished before, for an earlier request or before the run was resumed, no episodes are run.
        """
        granted = await self._grant(ticket)
        group = granted.group or await self._play_group(granted.order, granted.task, step, "train", sessions)
        # The record stores no routed experts: only the trainer's rows need them, which are built from the result.
        await self._post_notice(GroupNotice(drop_experts(group), step, ticket))
        return group

    async def _play_validation(self, index: int, task: Task, step: int, sessions: int) -> Group:
        """Run a validation task's episodes, send the group to the run's own process, and return it.

        Args:
            index: place of the task among the validation tasks.
        """
        group = await self._play_group(index, task, step, "validation", sessions)
        await self._post_notice(GroupNotice(drop_experts(group), step))
        return group

    async def _play_group(self, order: int, task: Task, step: int, split: Split, sessions: int) -> Group:
        """Run all episodes of a group in the rollout's threads, and return the group once they have ended."""
        return await asyncio.wrap_future(
            self._rollout.play_group(order, task, step=step, split=split, repeats=sessions)
        )
