"""Rollout: tasks in, groups of episodes out.

Invariants: every repeat of every task ends as exactly one episode, whatever happens to it; one episode's failure
touches no other; nothing of the user's runs on the rollout's own loop, so that timeouts, deadlines and stops are
heard whatever user code does. `play` blocks the caller's thread only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ajet.algorithm import opened
from ajet.engine.contract import Sampling
from ajet.rollout.attempt import Attempt
from ajet.rollout.attempt_result import AttemptResult
from ajet.rollout.blame import timed_out
from ajet.rollout.checks import open_checks
from ajet.rollout.episode import build_episode
from ajet.rollout.failure import classify
from ajet.rollout.garbage_collection import rare_collections
from ajet.rollout.group import GroupPlay
from ajet.rollout.identity import Identity, workflow_task
from ajet.rollout.isolation import Isolation, open_isolation
from ajet.rollout.play import Closed, GivenBack, Play, Tally, Wanted
from ajet.rollout.rounds import RoundEngine
from ajet.rollout.sampling import split_repeats, split_sampling
from ajet.rollout.slots import Slots
from ajet.rollout.verdicts import RETRY_PAUSE, Verdicts, by_the_calls, first
from ajet.schema.episode import Episode, Group, Split
from ajet.schema.errors import ConfigError
from ajet.schema.task import Task
from ajet.workflow.ambient import Ambient
from ajet.workflow.resources import Resources

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.gateway import Capture, Gateway, Session
    from ajet.task_judge import Judge

STOP_TIME = 5.0
"""Seconds that a stopped play gets to take in what its episodes left."""
HANGS_S = 1.5
"""How long an attempt that was stopped may take to close what it opened; then it is closed for it."""
_LAST_WORDS = 0.1
"""Seconds for which the loop still runs after `close`, so that what was just cancelled there ends."""


class Rollout:
    """Plays tasks with one workflow, gateway and judge. One play at a time."""

    def __init__(
        self,
        experiment: Experiment,
        gateway: Gateway,
        workflow_class: type[Any],
        judge: Judge,
        *,
        run_id: str,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> None:
        """`on_episode` sees each episode as it ends, aborted ones too, in the thread that iterates over `play`.

        Raises ConfigError for settings that exclude each other.
        """
        settings = experiment.ajet
        self._settings, self._config, self._base = settings, experiment.config, experiment.base
        self._gateway = gateway
        self._workflow_class, self._run_id, self._on_episode = workflow_class, run_id, on_episode
        self._rounds = _rounds_of(gateway, settings)
        self._isolation: Isolation = open_isolation(experiment, workflow_class, gateway.ambient)
        self._ambient = None if self._isolation.apart else Ambient(gateway.ambient)
        self._verdicts = Verdicts(judge, settings)
        self._inspect = open_checks(settings.rollout.compute_madness_checklist)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="ajet-rollout", daemon=True).start()
        self._plays: dict[Play, Future[None]] = {}
        self._stopped: list[Resources] = []
        """Of attempts that were stopped a moment ago."""
        self._shared: Slots | None = None
        self._closed = False
        self.tally = Tally()
        """What the last play came to."""

    @property
    def abandoned(self) -> int:
        """Workflows that were stopped, could not be ended, and still run."""
        return self._isolation.abandoned

    def play(self, tasks: Sequence[tuple[int, Task]], **options: Any) -> Iterator[Group]:
        """The groups of `stream` that are kept, for who hands in no task to get it back."""
        with contextlib.closing(self.stream(tasks, **options)) as ended:
            for each in ended:
                if isinstance(each, Closed) and each.kept:
                    yield each.group

    def stream(
        self,
        tasks: Sequence[tuple[int, Task]],
        *,
        step: int,
        split: Split,
        repeats: int | None = None,
        sampling: Sampling | None = None,
        keep: int | None = None,
        over: Collection[tuple[int, int]] = (),
    ) -> Generator[Closed | GivenBack, None, None]:
        """Play every (order, task) `repeats` times and yield how each ended, as it does.

        `over`: attempts, by order and repeat, that were played before and are not played again: groups lack them, and
        there is none of a task that has all. `keep`: stop after so many groups with something to learn from; None keeps
        all, or, with `rollout.enable_oversample` in training, `data.train_batch_size`. Leaving the iteration early, by
        an exception too, aborts what runs. `repeats` and `sampling` default to the split's own settings.
        """
        if self._closed:
            raise RuntimeError("the rollout is closed")
        rollout, debug = self._settings.rollout, self._settings.debug
        if repeats is None:
            repeats = split_repeats(self._settings, split)
        if keep is None and split == "train" and rollout.enable_oversample:
            keep = self._settings.data.train_batch_size
        limit = debug.debug_max_parallel if split == "debug" else rollout.max_env_worker
        if self._rounds is not None:
            self._rounds.begin()
        kept = None if keep is None else Wanted(keep, opened(self._settings, base=self._base).learns_from)
        play = Play(kept, in_order=rollout.deterministic)
        self.tally = play.tally
        sampling = sampling or split_sampling(self._settings, split)
        conducted = asyncio.run_coroutine_threadsafe(
            self._conduct(play, _left(tasks, repeats, over), step, split, sampling, limit), self._loop
        )
        conducted.add_done_callback(lambda future: _end(play, future))
        self._plays[play] = conducted
        try:
            with rare_collections():
                while (event := play.events.get()) is not None:
                    if isinstance(event, BaseException):
                        raise event
                    if isinstance(event, Closed | GivenBack):
                        yield event
                    elif self._on_episode is not None:
                        self._on_episode(event)
        finally:
            self._plays.pop(play, None)
            if not conducted.done():
                self._loop.call_soon_threadsafe(play.stop, "interrupted")
                _wait(conducted)
            play.tally.abandoned = self.abandoned

    def play_group(self, order: int, task: Task, *, step: int, split: Split, repeats: int) -> Future[Group]:
        """Play one task beside whatever else is played, for those who are handed tasks one by one, as verl's workers
        are. All groups begun so share `max_env_worker`; `on_episode` and `tally` know nothing of them."""
        if self._closed:
            raise RuntimeError("the rollout is closed")
        return asyncio.run_coroutine_threadsafe(self._alone(order, task, step, split, repeats), self._loop)

    def close(self) -> None:
        """Abort what runs and release threads and processes, promptly. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for play, conducted in list(self._plays.items()):
            self._loop.call_soon_threadsafe(play.stop, "interrupted")
            _wait(conducted)
        self._isolation.close()
        if self._ambient is not None:
            self._ambient.close()
        self._verdicts.close()
        self._loop.call_soon_threadsafe(self._close_what_hangs)
        self._loop.call_soon_threadsafe(self._loop.call_later, _LAST_WORDS, self._loop.stop)

    def _close_if_it_hangs(self, resources: Resources) -> None:
        """An attempt that was stopped closes what it opened; one that does not hear that is given a moment."""
        self._stopped.append(resources)
        self._loop.call_later(HANGS_S, self._close_what_hangs, resources)

    def _close_what_hangs(self, *some: Resources) -> None:
        for resources in some or tuple(self._stopped):
            with contextlib.suppress(ValueError):
                self._stopped.remove(resources)
                resources.close_beside()

    async def _conduct(
        self,
        play: Play,
        tasks: Sequence[tuple[int, Task, list[int]]],
        step: int,
        split: Split,
        sampling: Sampling,
        limit: int,
    ) -> None:
        rollout = self._settings.rollout
        total = sum(len(repeats) for _, _, repeats in tasks)
        slots = Slots(limit, total, self._rounds.expect if self._rounds else None)
        runs = []
        for index, (order, task, repeats) in enumerate(tasks):
            group = GroupPlay(
                task,
                order,
                index,
                len(repeats),
                deadline=rollout.group_deadline,
                min_group=rollout.min_group,
                on_close=play.closed,
            )
            play.groups.append(group)
            for repeat in repeats:
                identity = Identity(self._run_id, split, step, task, order, index, repeat)
                runs.append(asyncio.ensure_future(self._episode(play, group, slots, identity, sampling)))
        try:
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        play.finish()

    async def _alone(self, order: int, task: Task, step: int, split: Split, repeats: int) -> Group:
        rollout, play = self._settings.rollout, Play(None, in_order=False)
        if self._shared is None:
            self._shared = Slots(rollout.max_env_worker, 0)
        closed: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        group = GroupPlay(
            task,
            order,
            0,
            repeats,
            deadline=rollout.group_deadline,
            min_group=rollout.min_group,
            on_close=lambda group: closed.set_result(group.group()),
        )
        identities = [Identity(self._run_id, split, step, task, order, 0, repeat) for repeat in range(repeats)]
        sampling = split_sampling(self._settings, split)
        with rare_collections():
            await asyncio.gather(*(self._episode(play, group, self._shared, each, sampling) for each in identities))
        return await closed

    async def _episode(
        self, play: Play, group: GroupPlay, slots: Slots, identity: Identity, sampling: Sampling
    ) -> None:
        """One episode, from its wait for a slot to its place in the group."""
        seat = slots.ask()
        try:
            await first(seat, group.stopped)
            if group.stopped.done():
                played = AttemptResult(aborted=group.stopped.result(), attempts=0)
            else:
                group.began()
                played = await self._attempts(play, group, identity, sampling)
        finally:
            slots.leave(seat)
        verdict = await self._verdicts.of(identity, played, group.stopped)
        episode = build_episode(identity, played, verdict, self._settings)
        play.tally.statuses[episode.status] += 1
        if episode.failure:
            play.tally.failures[episode.failure.boundary, episode.failure.kind] += 1
        play.events.put(episode)
        group.ended(episode)

    async def _attempts(self, play: Play, group: GroupPlay, identity: Identity, sampling: Sampling) -> AttemptResult:
        """Attempts until one ends well or in a way that another would not mend. All draw with the same key."""
        number = 1
        while True:
            played = await self._attempt(group, identity, sampling)
            played.attempts = number
            failure = played.failure
            if failure is None or not failure.retryable or number > self._settings.rollout.max_retries:
                return played
            await first(group.stopped, timeout=RETRY_PAUSE * 2 ** (number - 1))
            if group.stopped.done():
                return played
            play.tally.retries += 1
            if played.capture is not None:
                play.tally.lost_tokens += sum(len(call.response_ids) for call in played.capture.calls)
            number += 1

    async def _attempt(self, group: GroupPlay, identity: Identity, sampling: Sampling) -> AttemptResult:
        attempt = Attempt(
            self._workflow_class,
            workflow_task(identity),
            self._config,
            lambda trainable: self._open_session(identity, sampling, trainable),
        )
        played = AttemptResult(started=time.time())
        future = asyncio.wrap_future(self._isolation.start(attempt))
        timeout = self._settings.rollout.episode_timeout
        try:
            await first(future, group.stopped, timeout=timeout)
        finally:
            ended = future.done()
            if not ended:
                future.add_done_callback(_forget)
                stood = self._isolation.stands(attempt)
                self._isolation.stop(attempt)
                self._close_if_it_hangs(attempt.resources)
        played.capture = await self._captured(attempt)
        played.ended = time.time()
        played.printed = attempt.printed
        if not ended:
            if group.stopped.done():
                played.aborted = group.stopped.result()
            else:
                shared = self._isolation.shared
                played.failure = timed_out(timeout, played, shared_loop=shared, stood=stood)
            return played
        try:
            played.output = future.result()
        except BaseException as problem:  # noqa: BLE001 - the border where user code's failures become data
            played.failure = classify(problem, attempt.stage)
        played.failure = by_the_calls(played)
        return played

    async def _captured(self, attempt: Attempt) -> Capture | None:
        """Close the attempt's session on the gateway's own loop: waiting for that loop here would hold up all."""

        async def close() -> Capture | None:
            return attempt.close()

        return await asyncio.wrap_future(self._gateway.call(close()))

    def _open_session(self, identity: Identity, sampling: Sampling, trainable: Collection[str] | None) -> Session:
        return self._gateway.open(
            identity.uuid,
            key=(self._settings.seed, identity.order, identity.repeat),
            sampling=sampling,
            trainable=trainable,
            inspect=self._inspect,
            terminate_on_inspect=self._settings.rollout.agent_madness_termination,
        )


def _left(
    tasks: Sequence[tuple[int, Task]], repeats: int, over: Collection[tuple[int, int]]
) -> list[tuple[int, Task, list[int]]]:
    """Each task with the attempts that are not over; a task of which all are is not there."""
    left = [(order, task, [at for at in range(repeats) if (order, at) not in over]) for order, task in tasks]
    return [each for each in left if each[2]]


def _rounds_of(gateway: Gateway, settings: Any) -> RoundEngine | None:
    rollout = settings.rollout
    if not rollout.deterministic:
        return None
    if rollout.group_deadline is not None:
        raise ConfigError(
            "A group cannot close by the clock in a deterministic rollout.",
            where="ajet.rollout.group_deadline",
            expected="null with rollout.deterministic: true",
        )
    engine = gateway.engine
    return engine if isinstance(engine, RoundEngine) else None


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _end(play: Play, future: Future[None]) -> None:
    problem = None if future.cancelled() else future.exception()
    if problem is not None:
        play.events.put(problem)
    elif future.cancelled():
        play.events.put(None)


def _wait(future: Future[None]) -> None:
    try:
        future.exception(timeout=STOP_TIME)
    except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
        future.cancel()
