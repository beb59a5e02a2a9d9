"""LastingRunner: a process of Trinity for playing groups, replaced after its death, with its group played once more.

Invariant: each requested group is returned, or the run ends. Trinity replaces a runner for later tasks, but waits
forever for the dead runner's task (its scheduler's `task_done_callback`). The mailbox repeats the answer for a repeated
ticket and hands over an already finished group. After several deaths the run's own process ends the run
(`ajet_ray.record.DEATHS`).
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
    """Replacement of Trinity's class `RunnerWrapper`."""

    async def run_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        """Return Trinity's answer of a task, from a live process."""
        while True:
            try:
                answer = await super().run_with_retry(*args, **kwargs)
                if not answer[0].ok:  # Trinity reports a dead actor like any failure, so check the actor
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
    """Replace the runner class in the process of the scheduler, because the scheduler looks up the class by name."""
    scheduler.RunnerWrapper = LastingRunner
