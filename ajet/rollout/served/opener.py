"""Opens episodes of external agents: admission, held-out task, identity, session and key.

Invariants: a refused client has taken neither a position of the store nor a place in a group. Held-out tasks take
turns: after as many attempts as there are tasks, each task was played once. An attempt that did not count was no turn.
The split states the purpose of the episode. An untrained episode is not in the training split, and a held-out episode
is in the validation split if a trainer takes the groups. All methods run on the registry's loop.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.gateway import Refused
from ajet.rollout.attempt import open_session
from ajet.rollout.breaker import Breaker
from ajet.rollout.checks import open_checks
from ajet.rollout.components import choose_sampling
from ajet.rollout.served.episode import EpisodeRequest, ServedEpisode, ServedIdentity, describe_open
from ajet.rollout.served.groups import OpenGroup
from ajet.schema.episode import Split
from ajet.schema.task import Task
from ajet.store import Lease

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.gateway import Gateway


class AdmissionControl:
    """Decides which episodes one registry admits."""

    def __init__(
        self,
        settings: AjetConfig,
        breaker: Breaker,
        under_way: Mapping[str, ServedEpisode],
        count_complete: Callable[[], int],
        backlog: int | None,
    ) -> None:
        """Read the limits from the settings.

        Args:
            under_way: The open episodes by name. This is the registry's own mapping.
            count_complete: Counts the complete groups waiting for the trainer.
            backlog: Maximum number of waiting complete groups. None: no trainer takes the groups.
        """
        self._max_episodes, self._max_per_task = settings.rollout.max_env_worker, settings.serve.max_per_task
        self._breaker, self._under_way = breaker, under_way
        self._count_complete, self._backlog = count_complete, backlog
        self.opening = 0
        """The number of episodes waiting for a position of the store."""

    def is_crowded(self, task: Task) -> bool:
        """Return True if the task has as many open episodes as `serve.max_per_task` allows."""
        limit = self._max_per_task
        return limit is not None and sum(served.identity.task == task for served in self._under_way.values()) >= limit

    def refuse_crowded(self, task: Task) -> None:
        """Raise Refused if the task has as many open episodes as `serve.max_per_task` allows."""
        if self.is_crowded(task):
            raise Refused(
                f"{self._max_per_task} episodes of this task are open, as many as serve.max_per_task allows; "
                "finish one first, or request another task.",
                status=429,
                code="task_busy",
                param="task",
            )

    def refuse_more(self) -> bool:
        """Raise Refused if no episode may start. Return True if the next episode is the breaker's probe."""
        if len(self._under_way) + self.opening >= self._max_episodes:
            raise Refused(
                f"{self._max_episodes} episodes are open, as many as rollout.max_env_worker allows; finish one first.",
                status=429,
                code="too_many_episodes",
            )
        if self._backlog is not None and self._count_complete() >= self._backlog:
            raise Refused(
                f"{self._backlog} complete groups of attempts wait for the trainer; retry later.",
                status=429,
                code="trainer_busy",
            )
        if not self._breaker.is_open:
            return False
        if self._breaker.may_probe():
            return True
        raise Refused(
            f"The server opens no episodes for now: {self._breaker.why} (rollout.breaker); retry later.",
            status=503,
            code="outage",
            retry_after=1,
        )


class HeldOutTasks:
    """Hands the held-out tasks of one registry to clients, the task with the fewest attempts first."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._attempts = [0] * len(tasks)
        """The number of attempts at each task."""

    def __len__(self) -> int:
        return len(self._tasks)

    def take_next(self) -> Task:
        """Return the held-out task with the fewest attempts so far. Raises Refused if there are no held-out tasks."""
        if not self._tasks:
            raise Refused(
                "The request contains no task, and the server has no held-out tasks to take one from.", param="task"
            )
        index = self._attempts.index(min(self._attempts))
        self._attempts[index] += 1
        return self._tasks[index]

    def return_turn(self, task: Task) -> None:
        """Stop counting an attempt at a task, so that the task comes again before the others."""
        self._attempts[self._tasks.index(task)] -= 1


class EpisodeOpener:
    """Opens the episodes of one registry, on the registry's loop."""

    def __init__(self, gateway: Gateway, settings: AjetConfig, *, run_id: str, split: Split, trained_on: bool) -> None:
        """`trained_on`: True if a trainer takes the groups."""
        self._gateway = gateway
        self._settings = settings
        self._run_id = run_id
        self._split = split
        self._trained_on = trained_on
        self._check_reply = open_checks(settings.rollout.compute_madness_checklist)

    def open(
        self, request: EpisodeRequest, task: Task, group: OpenGroup | None, lease: Lease, repeat: int, *,
        is_probe: bool, is_held_out_turn: bool, version: int,
    ) -> ServedEpisode:  # fmt: skip
        """Open an episode with a session and a key.

        Args:
            group: The group of the attempt. None: the episode is recorded alone.
            lease: The store's lease of the episode's position in the training order.
            repeat: Number of the attempt's place in the group.
            is_probe: True if the episode tests during an outage whether the outage is over.
            is_held_out_turn: True if the task is one of the server's held-out tasks.
            version: The policy's version.

        Raises:
            Refused: The gateway opens no session.
        """
        split: Split = self._split if request.trains else "debug"
        if request.held_out and self._trained_on:
            split = "validation"
        step = version + 1 if self._trained_on else 0
        group_name, order = group.name if group is not None else "", lease.order
        identity = ServedIdentity(self._run_id, split, step, task, order, order, repeat, uuid.uuid4().hex, group_name)
        started = time.time()
        session = open_session(
            self._gateway,
            self._settings,
            self._check_reply,
            identity,
            sampling=choose_sampling(self._settings, "validation" if is_held_out_turn else "train"),
            trainable=request.trainable if request.trains else (),
            started_at=started,
        )
        endpoint = session(request.agent, request.agent, None)
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return ServedEpisode(
            identity, session, endpoint, lease, group, stopped,
            is_probe=is_probe, is_held_out_turn=is_held_out_turn, began=started,
        )  # fmt: skip


def describe_opened(served: ServedEpisode, version: int) -> dict[str, Any]:
    """Return the reply to the request that opened the episode: `describe_open` with task, address and key."""
    endpoint = served.endpoint
    return {
        **describe_open(served, version),
        "task": served.identity.task.model_dump(),
        "base_url": endpoint.base_url,
        "path_base_url": f"{endpoint.base_url.removesuffix('/v1')}/s/{endpoint.api_key}/v1",
        "api_key": endpoint.api_key,
        "model": endpoint.model,
    }
