"""Attempts: one after the other or side by side, each with a world, a session and a place to run of its own.

Invariants: an attempt ends as one `AttemptResult`, whatever its code does; its session is closed when that is there,
and what it opened is closed with it, by itself or, where it hangs, for it; its time counts from before its world is
made. Nothing of the user's runs on the loop that this stands on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ajet.engine.contract import Sampling
from ajet.environment.pinned import Pins
from ajet.environment.replay import Replay, replayed_run
from ajet.environment.services.threads import in_thread
from ajet.rollout.attempt import Attempt, AttemptResult, Identity
from ajet.rollout.checks import open_checks
from ajet.rollout.failure import classify, classify_timeout, find_failure
from ajet.rollout.group import GroupPlay
from ajet.rollout.isolation import Isolation, open_isolation
from ajet.rollout.own_loop import wait_first
from ajet.rollout.worlds import Worlds
from ajet.schema.task import WorkflowTask
from ajet.workflow.ambient import Ambient
from ajet.workflow.resources import Resources

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.gateway import Capture, Gateway, Session

HANGS_S = 1.5
"""How long an attempt that was stopped may take to close what it opened; then it is closed for it."""


class Attempts:
    """Plays the attempts of one rollout; `one` and what it calls run on `loop`."""

    def __init__(
        self,
        experiment: Experiment,
        gateway: Gateway,
        workflow_class: type[Any],
        loop: asyncio.AbstractEventLoop,
        pins: Pins,
    ) -> None:
        """Raises ConfigError; UserError for a world that cannot be had."""
        self._settings, self._config = experiment.ajet, experiment.config
        self._gateway, self._workflow_class, self._loop = gateway, workflow_class, loop
        self._replay, self._pins = _replay_of(experiment), pins
        self._inspect = open_checks(self._settings.rollout.compute_madness_checklist)
        with contextlib.ExitStack() as undone:
            self._worlds = Worlds.of(experiment)
            undone.callback(self._worlds.close)
            self.isolation: Isolation = open_isolation(experiment, workflow_class, gateway.ambient)
            undone.callback(self.isolation.close)
            self._ambient = None if self.isolation.apart else Ambient(gateway.ambient)
            undone.pop_all()
        self._stopped: list[Resources] = []
        """Of attempts that were stopped a moment ago."""

    @property
    def abandoned(self) -> int:
        """Workflows that were stopped, could not be ended, and still run."""
        return self.isolation.abandoned

    async def one(self, group: GroupPlay, identity: Identity, sampling: Sampling) -> AttemptResult:
        """Play it. What it holds of a world is the caller's to `release`, once it is judged."""
        played = AttemptResult(started=time.time())
        timeout = self._settings.rollout.episode_timeout
        played.task = task = identity.make_task()
        await self._worlds.enter(played, group.stopped)
        if played.aborted or played.failure:
            played.ended = time.time()
            return played
        attempt = Attempt(
            self._workflow_class,
            task,
            self._config,
            lambda trainable: self._open_session(identity, sampling, trainable, played.started),
            self._replay.walk(identity.task, identity.repeat) if self._replay is not None else None,
            self._pins,
        )
        attempt.began, attempt.since = played.started, played.since
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - played.since))
        future = asyncio.wrap_future(self.isolation.start(attempt))
        ended, stood = False, ""
        try:
            await wait_first(future, group.stopped, timeout=left)
            ended = future.done()
            if not ended and not group.stopped.done():
                stood = await self._stands(attempt)
        finally:
            if not ended:
                future.add_done_callback(_forget)
                self.isolation.stop(attempt)
                self._close_if_it_hangs(attempt.resources)
        played.capture = await self._captured(attempt)
        played.ended = time.time()
        played.printed = attempt.printed
        if not ended:
            if group.stopped.done():
                played.aborted = group.stopped.result()
            else:
                shared = self.isolation.shared
                played.failure = classify_timeout(timeout, played, shared_loop=shared, stood=stood)
            return played
        try:
            played.output = future.result()
        except BaseException as problem:  # noqa: BLE001 - the border where user code's failures become data
            played.failure = classify(problem, attempt.stage, attempt.task.task)
        played.failure = find_failure(played)
        return played

    async def _stands(self, attempt: Attempt) -> str:
        """Where its code does. Another process takes its time to say so."""
        if not self.isolation.apart:
            return self.isolation.stands(attempt)
        return await in_thread(self.isolation.stands, attempt)

    async def _captured(self, attempt: Attempt) -> Capture | None:
        """Close the attempt's session on the gateway's own loop: waiting for that loop here would hold up all."""

        async def close() -> Capture | None:
            return attempt.close()

        return await asyncio.wrap_future(self._gateway.call(close()))

    def _open_session(
        self, identity: Identity, sampling: Sampling, trainable: Collection[str] | None, began: float
    ) -> Session:
        return self._gateway.open(
            identity.uuid,
            key=(self._settings.seed, identity.order, identity.repeat),
            sampling=sampling,
            trainable=trainable,
            inspect=self._inspect,
            terminate_on_inspect=self._settings.rollout.agent_madness_termination,
            began=began,
        )

    def release(self, task: WorkflowTask | None) -> None:
        """Give an attempt's instance of a world back."""
        self._worlds.release(task)

    def stop(self) -> None:
        """No further ones; threads and processes are let go."""
        try:
            self.isolation.close()
        finally:
            if self._ambient is not None:
                self._ambient.close()

    def close(self) -> None:
        """Let worlds go, and close what stopped attempts left open. After `stop`."""
        self._worlds.close()
        self._loop.call_soon_threadsafe(self._close_what_hangs)

    def _close_if_it_hangs(self, resources: Resources) -> None:
        """An attempt that was stopped closes what it opened; one that does not hear that is given a moment."""
        self._stopped.append(resources)
        self._loop.call_later(HANGS_S, self._close_what_hangs, resources)

    def _close_what_hangs(self, *some: Resources) -> None:
        for resources in some or tuple(self._stopped):
            with contextlib.suppress(ValueError):
                self._stopped.remove(resources)
                resources.close_beside()


def _replay_of(experiment: Experiment) -> Replay | None:
    wanted = experiment.ajet.environment
    on_miss, named = wanted.replay_miss, wanted.replay
    return Replay(replayed_run(named, base=experiment.base, root=experiment.root), on_miss) if named else None


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
