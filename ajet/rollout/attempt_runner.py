"""Runs attempts, each with an environment instance, a gateway session and a slot of the isolation.

Invariants: an attempt ends as one `AttemptResult`, no matter how the attempt's code ends. By then the session is
closed. The attempt's own code closes the resources, or the runner does if the code hangs. The time limit starts before
the environment is created. The environment instance is released however the attempt ends, also after a kill of the
workflow's process. A failed creation of an instance is a failed attempt. No user code runs on the rollout's loop, and
no call blocks the loop: environment services are called in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.engine.contract import Sampling
from ajet.environment.loop import in_thread
from ajet.environment.pinned import ToolPins
from ajet.environment.replay import RunReplay, find_replayed_run
from ajet.environment.services import GymEnv
from ajet.environment.services.chosen import ChosenEnvironment, choose_environment
from ajet.rollout.attempt import AttemptResult, Identity, LocalAttempt, call_on_gateway, open_session
from ajet.rollout.checks import open_checks
from ajet.rollout.failure import classify_exception, classify_timeout, find_failure
from ajet.rollout.isolation import Isolation, open_isolation
from ajet.rollout.runtime import wait_first
from ajet.schema.errors import BoundaryError, EnvironmentFailure
from ajet.schema.task import WorkflowTask
from ajet.workflow.ambient import RunEnvironment
from ajet.workflow.resources import MOST_RESERVED_S, Resources

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.gateway import Gateway, Session

HANG_TIMEOUT_S = 1.5
"""Seconds for a stopped attempt to close resources. After the timeout the runner closes the rest."""
RESERVE_S = 0.2
"""Share of an episode's time reserved after the last environment action, at most MOST_RESERVED_S. A slow environment
then fails as the environment, and not as an agent over the time limit.
"""
GOODBYE_S = 3.0
"""Seconds to release instances when the rollout ends. Services release the rest after their idle time."""


class AttemptRunner:
    """Plays the attempts of one rollout. `play` and the methods called by `play` run on `loop`."""

    def __init__(
        self,
        experiment: Experiment,
        gateway: Gateway,
        workflow_class: type[Any],
        loop: asyncio.AbstractEventLoop,
        pins: ToolPins,
    ) -> None:
        """Open environments and the isolation. If opening fails, everything opened before is closed.

        Args:
            loop: The rollout's event loop.
            pins: Checks that each attempt is offered the tools of the run's first attempt.

        Raises:
            ConfigError: The isolation or a check refuses the experiment.
            UserError: The environment is not available.
        """
        self._settings, self._config = experiment.ajet, experiment.config
        self._gateway = gateway
        self._workflow_class = workflow_class
        self._loop = loop
        self._replay, self._tool_pins = open_replay(experiment), pins
        self._check_reply = open_checks(self._settings.rollout.compute_madness_checklist)
        with contextlib.ExitStack() as undone:
            self._environments = EnvironmentInstances.open(experiment)
            undone.callback(self._environments.close)
            self.isolation: Isolation = open_isolation(experiment, workflow_class, gateway.ambient)
            undone.callback(self.isolation.close)
            self._ambient = None if self.isolation.is_remote else RunEnvironment(gateway.ambient)
            undone.pop_all()
        self._hanging_resources: list[Resources] = []
        """Resources of attempts stopped less than HANG_TIMEOUT_S ago."""

    @property
    def abandoned_count(self) -> int:
        """The number of workflows whose code still runs although their attempt was stopped."""
        return self.isolation.abandoned_count

    async def play(self, identity: Identity, sampling: Sampling, stop_signal: asyncio.Future[str]) -> AttemptResult:
        """Play one attempt and return its result. The caller must `release` the environment once the attempt is judged.

        Args:
            stop_signal: Done, with the reason, when the attempt is to be aborted.
        """
        result = AttemptResult(started=time.time())
        result.task = identity.make_task()
        await self._environments.enter(result, stop_signal)
        if result.aborted or result.failure:
            result.ended = time.time()
            return result
        attempt = self._make_attempt(identity, sampling, result, result.task)
        future = asyncio.wrap_future(self.isolation.start(attempt))
        line_at_stop = await self._await_end(attempt, future, stop_signal)
        # A line of user code, even an empty one, means that the attempt was stopped before its code ended.
        is_finished = line_at_stop is None
        result.capture = await call_on_gateway(self._gateway, attempt.close)
        result.ended = time.time()
        result.printed = attempt.printed
        if not is_finished:
            if stop_signal.done():
                result.aborted = stop_signal.result()
            else:
                result.failure = classify_timeout(
                    self._settings.rollout.episode_timeout, result.capture, result.started, result.ended,
                    shared_loop=self.isolation.shares_loop, stood=line_at_stop or "",
                )  # fmt: skip
            return result
        try:
            result.output = future.result()
        except BaseException as problem:  # noqa: BLE001 - the border where user code's failures become data
            result.failure = classify_exception(problem, attempt.stage, attempt.task.task)
        result.failure = find_failure(result.capture, result.failure)
        return result

    def _make_attempt(
        self, identity: Identity, sampling: Sampling, result: AttemptResult, task: WorkflowTask
    ) -> LocalAttempt:
        """Build the attempt, with a function that opens the gateway session once the workflow instance exists."""

        def open_own_session(trainable: Collection[str] | None) -> Session:
            return open_session(
                self._gateway, self._settings, self._check_reply, identity,
                sampling=sampling, trainable=trainable, started_at=result.started,
            )  # fmt: skip

        attempt = LocalAttempt(
            self._workflow_class,
            task,
            self._config,
            open_own_session,
            self._replay.walk(identity.task, identity.repeat) if self._replay is not None else None,
            self._tool_pins,
        )
        attempt.began, attempt.since = result.started, result.since
        return attempt

    async def _await_end(
        self, attempt: LocalAttempt, future: asyncio.Future[Any], stop_signal: asyncio.Future[str]
    ) -> str | None:
        """Wait for the end of the attempt. If a timeout or a stop comes first, stop the attempt.

        Returns:
            None if the attempt has ended. Otherwise the line of user code at the moment of the timeout, or "" if the
                line is not known or `stop_signal` stopped the attempt.
        """
        timeout = self._settings.rollout.episode_timeout
        remaining = None if timeout is None else max(0.0, timeout - (time.monotonic() - attempt.since))
        is_finished, line = False, ""
        try:
            await wait_first(future, stop_signal, timeout=remaining)
            is_finished = future.done()
            if not is_finished and not stop_signal.done():
                locate = self.isolation.locate  # a worker may reply late, so it is called in a thread
                line = await in_thread(locate, attempt) if self.isolation.is_remote else locate(attempt)
        finally:
            if not is_finished:
                future.add_done_callback(_consume_exception)
                self.isolation.stop(attempt)
                self._hanging_resources.append(attempt.resources)
                self._loop.call_later(HANG_TIMEOUT_S, self._close_hanging, attempt.resources)
        return None if is_finished else line

    def release(self, task: WorkflowTask | None) -> None:
        """Release the environment instance of an attempt. `task` is None if no workflow was started."""
        self._environments.release(task)

    def stop(self) -> None:
        """Begin no further attempts. Release threads and processes."""
        try:
            self.isolation.close()
        finally:
            if self._ambient is not None:
                self._ambient.close()

    def close(self) -> None:
        """Close environments and all resources left open by stopped attempts. Call this after `stop`."""
        self._environments.close()
        self._loop.call_soon_threadsafe(self._close_hanging)

    def _close_hanging(self, *some: Resources) -> None:
        """Close resources that the code of stopped attempts has not closed. Without arguments, close all of them."""
        for resources in some or tuple(self._hanging_resources):
            # ValueError: another call has closed these resources and removed them from the list.
            with contextlib.suppress(ValueError):
                self._hanging_resources.remove(resources)
                resources.close_in_thread()


def open_replay(experiment: Experiment) -> RunReplay | None:
    """Return the recorded run whose tool results are replayed (`environment.replay`), or None if no run is set."""
    environment = experiment.ajet.environment
    on_miss, run_name = environment.replay_miss, environment.replay
    return (
        RunReplay(find_replayed_run(run_name, base=experiment.base, root=experiment.root), on_miss)
        if run_name
        else None
    )


def _consume_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future without a waiter. Python would log the exception otherwise."""
    if not future.cancelled():
        future.exception()


class EnvironmentInstances:
    """Manages the environment instances of one rollout, created before a workflow and released after the judge.

    `release` may be called from any thread, `enter` on the rollout's loop.
    """

    def __init__(self, chosen: ChosenEnvironment | None, timeout: float | None) -> None:
        """Prepare without instances.

        Args:
            chosen: The environment's service and parameters. None: the experiment has no environment.
            timeout: Seconds that an episode may take. None: no limit.
        """
        self._environment, self._timeout = chosen, timeout
        self._release_threads: set[threading.Thread] = set()
        self._has_warned = False

    @classmethod
    def open(cls, experiment: Experiment) -> EnvironmentInstances:
        """Open the experiment's environment. Raises UserError if the environment is not available."""
        return cls(choose_environment(experiment), experiment.ajet.rollout.episode_timeout)

    async def enter(self, result: AttemptResult, stop_signal: asyncio.Future[str]) -> None:
        """Create an instance for the attempt and put it into `result.task`, with the environment's first messages.

        If the creation fails or is stopped, `result.failure` or `result.aborted` is set instead.
        """
        task = result.task
        if self._environment is None or task is None:
            return
        env = GymEnv(self._environment.service, task.task_id)
        params = {**self._environment.params, **({"metadata": task.task.metadata} if task.task.metadata else {})}
        opening = asyncio.ensure_future(in_thread(env.create, None, params))
        await wait_first(opening, stop_signal, timeout=self._timeout)
        if not opening.done():
            # The creating thread cannot be interrupted. An instance that it creates too late is released at once.
            opening.add_done_callback(lambda _: self._start_release(env))
            if stop_signal.done():
                result.aborted = stop_signal.result()
            else:
                late = EnvironmentFailure(
                    f"the environment {env} did not start within the episode's {self._timeout:g} s"
                )
                result.failure = classify_exception(late)
            return
        try:
            _begin_task(task, env, opening.result())
        except Exception as problem:  # noqa: BLE001 - any exception of an environment's client is the environment's
            result.failure = classify_exception(_wrap_problem(env, problem))
            self._start_release(env)
            return
        if self._timeout is not None:
            # Environment actions must end a little before the episode does, so that a slow environment is blamed for
            # the delay.
            env.until = result.since + self._timeout - min(MOST_RESERVED_S, RESERVE_S * self._timeout)

    def release(self, task: WorkflowTask | None) -> None:
        """Release the instance of an attempt, if there is one, without waiting."""
        if task is not None and isinstance(task.gym_env, GymEnv):
            self._start_release(task.gym_env)

    def close(self) -> None:
        """Wait up to GOODBYE_S for the release of instances. Idempotent."""
        deadline = time.monotonic() + GOODBYE_S
        for thread in list(self._release_threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._environment is not None:
            self._environment.close()

    def _start_release(self, env: GymEnv) -> None:
        """Release an instance in a thread of its own, because the service may answer slowly."""
        thread = threading.Thread(target=self._release_instance, args=(env,), name="ajet-release", daemon=True)
        self._release_threads.add(thread)
        thread.start()

    def _release_instance(self, env: GymEnv) -> None:
        """Release an instance. A failure is logged once per rollout, because the episode has already ended."""
        try:
            env.release()
        except EnvironmentFailure as problem:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("an environment instance could not be closed (logged only once): {}", problem)
        finally:
            self._release_threads.discard(threading.current_thread())


def _wrap_problem(env: GymEnv, problem: Exception) -> BoundaryError:
    """Return an exception of an environment's start as a BoundaryError: wrapped in EnvironmentFailure unless it is one
    already.
    """
    if isinstance(problem, BoundaryError):
        return problem
    failure = EnvironmentFailure(f"the environment {env} could not be started: {type(problem).__name__}: {problem}")
    failure.__cause__ = problem
    return failure


def _begin_task(task: WorkflowTask, env: GymEnv, state: list[dict[str, Any]]) -> None:
    """Put the environment and its first messages into the task. The last message becomes `main_query` if it is plain
    text.
    """
    content = state[-1]["content"]
    query = content if isinstance(content, str) else task.task.main_query
    task.task = task.task.model_copy(update={"init_messages": state, "main_query": query})
    task.gym_env = env
