"""LastingRunner: a process of Trinity's that plays groups, replaced where it dies, and its group played again.

Invariant: each group that was asked for comes back, or the run ends. Trinity itself makes a runner anew for later tasks
and waits without end for the one that died with it (its scheduler's `task_done_callback`). The mailbox says of a ticket
that is asked for again what it said before, and hands a group over that had closed; after some deaths the run's own
process ends the run (`ajet_ray.record.DEATHS`).
"""

from __future__ import annotations

from typing import Any

from ray.exceptions import RayError
from trinity.explorer import scheduler
from trinity.explorer.scheduler import RunnerWrapper

from ajet_ray.cluster.ray_errors import read_last_line
from ajet_ray.mailbox import DeathNotice, Sender

ROLE = "explorer's runner"


class LastingRunner(RunnerWrapper):
    """Takes the place of `RunnerWrapper`."""

    async def run_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        """Trinity's answer of a task, from a process that lives."""
        while True:
            try:
                answer = await super().run_with_retry(*args, **kwargs)
                if not answer[0].ok:  # Trinity says a death as it says any failure: ask who lives
                    await self.runner.__ray_ready__.remote()
                return answer
            except RayError as died:
                await self._replace_runner(died)

    async def _replace_runner(self, died: RayError) -> None:
        while True:
            await Sender().post_async(DeathNotice(ROLE, read_last_line(died)))
            try:
                return await self.restart_runner()
            except RayError as problem:
                died = problem


def replace_dead_runners() -> None:
    """For the process that makes the runners, before it does: its scheduler looks their class up by name."""
    scheduler.RunnerWrapper = LastingRunner
