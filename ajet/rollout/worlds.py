"""Worlds: the environment that an episode is played in, made before its workflow and released after its judge.

Invariants: each attempt gets an instance of its own, and it is released whatever ends the attempt, a kill of the
workflow's process included; one that cannot be made is a failed attempt, never a task with something invented in it.
Nothing waits on the rollout's loop: services are asked in threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.environment.services import GymEnv
from ajet.environment.services.chosen import Chosen, chosen
from ajet.environment.services.threads import in_thread
from ajet.rollout.attempt import AttemptResult
from ajet.rollout.failure import classify
from ajet.rollout.own_loop import wait_first
from ajet.schema.errors import BoundaryError, EnvironmentFailure
from ajet.schema.task import WorkflowTask
from ajet.workflow.deadline import MOST_RESERVED_S

if TYPE_CHECKING:
    from ajet.config import Experiment

RESERVE = 0.2
"""Part of an episode's time before whose end its last action has ended, and at most as long as a tool's
(MOST_RESERVED_S): its failure is then known as one of the environment, not as an agent's that took too long."""
GOODBYE_S = 3.0
"""Seconds that instances get to be released when the rollout ends; services release what is left when it was idle."""


class Worlds:
    """The worlds of one rollout. `release` may be called from any thread, `enter` on the rollout's loop."""

    def __init__(self, chosen: Chosen | None, timeout: float | None) -> None:
        """`timeout`: of an episode, in seconds."""
        self._chosen, self._timeout = chosen, timeout
        self._leaving: set[threading.Thread] = set()
        self._told = False

    @classmethod
    def of(cls, experiment: Experiment) -> Worlds:
        """The worlds that an experiment names. Raises UserError."""
        return cls(chosen(experiment), experiment.ajet.rollout.episode_timeout)

    async def enter(self, played: AttemptResult, stopped: asyncio.Future[str]) -> None:
        """Make the instance and put it into `played.task`, with the messages that it begins with; or say in `played`
        what came between."""
        task = played.task
        if self._chosen is None or task is None:
            return
        env = GymEnv(self._chosen.service, task.task_id)
        params = {**self._chosen.params, **({"metadata": task.task.metadata} if task.task.metadata else {})}
        opening = asyncio.ensure_future(in_thread(env.create, None, params))
        await wait_first(opening, stopped, timeout=self._timeout)
        if not opening.done():
            opening.add_done_callback(lambda _: self._leave(env))
            if stopped.done():
                played.aborted = stopped.result()
            else:
                late = EnvironmentFailure(f"{env} was not made within the episode's {self._timeout:g} s")
                played.failure = classify(late)
            return
        try:
            _begin(task, env, opening.result())
        except Exception as problem:  # noqa: BLE001 - whatever a world makes its client raise is the world's
            played.failure = classify(_lost(env, problem))
            self._leave(env)
            return
        if self._timeout is not None:
            env.until = played.since + self._timeout - min(MOST_RESERVED_S, RESERVE * self._timeout)

    def release(self, task: WorkflowTask | None) -> None:
        """Give an attempt's instance back, without waiting. Nothing happens for one that has none."""
        if task is not None and isinstance(task.gym_env, GymEnv):
            self._leave(task.gym_env)

    def close(self) -> None:
        """Wait a moment for what is being released. Idempotent."""
        until = time.monotonic() + GOODBYE_S
        for thread in list(self._leaving):
            thread.join(max(0.0, until - time.monotonic()))
        if self._chosen is not None:
            self._chosen.close()

    def _leave(self, env: GymEnv) -> None:
        thread = threading.Thread(target=self._released, args=(env,), name="ajet-release", daemon=True)
        self._leaving.add(thread)
        thread.start()

    def _released(self, env: GymEnv) -> None:
        try:
            env.release()
        except EnvironmentFailure as problem:
            if not self._told:
                self._told = True
                logger.warning("an environment's instance was not released (said once): {}", problem)
        finally:
            self._leaving.discard(threading.current_thread())


def _lost(env: GymEnv, problem: Exception) -> BoundaryError:
    if isinstance(problem, BoundaryError):
        return problem
    failure = EnvironmentFailure(f"{env} was not made: {type(problem).__name__}: {problem}")
    failure.__cause__ = problem
    return failure


def _begin(task: WorkflowTask, env: GymEnv, state: list[dict[str, Any]]) -> None:
    asked = state[-1]["content"]
    query = asked if isinstance(asked, str) else task.task.main_query
    task.task = task.task.model_copy(update={"init_messages": state, "main_query": query})
    task.gym_env = env
