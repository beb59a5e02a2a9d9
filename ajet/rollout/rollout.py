"""Rollout: plays tasks and returns groups of episodes.

Invariants: every repeat of every task ends as exactly one episode. One episode's failure affects no other. No user code
runs on the rollout's own loop. Timeouts, deadlines and stops therefore take effect even if user code blocks. `play`
blocks only the caller's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.algorithm import open_algorithm
from ajet.engine.contract import Sampling
from ajet.environment.pinned import ToolPins
from ajet.rollout.attempt import Identity
from ajet.rollout.attempt_runner import AttemptRunner
from ajet.rollout.breaker import Breaker
from ajet.rollout.components import choose_repeats, choose_sampling
from ajet.rollout.episode import EpisodeBuilder
from ajet.rollout.episode_player import EpisodePlayer
from ajet.rollout.group import ClosedGroup, InflightBatch, InflightGroup, KeepRule, ReturnedTask, Slots
from ajet.rollout.judge_caller import JudgeCaller
from ajet.rollout.rounds import RoundEngine
from ajet.rollout.runtime import LoopThread, reduce_collections
from ajet.rollout.teacher import TeacherScorer
from ajet.schema.episode import Episode, Group, Split
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.gateway import Gateway
    from ajet.rollout.teacher import TeacherModel
    from ajet.task_judge import Judge

STOP_TIMEOUT = 5.0
"""Seconds that a stopped play waits for its episodes to end."""


@dataclass(frozen=True, slots=True)
class PlayOptions:
    """Options shared by all groups of a call."""

    step: int
    split: Split
    sampling: Sampling
    repeats: int
    """Attempts of a complete group, including attempts of earlier plays."""


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
        pins: ToolPins | None = None,
        teacher: TeacherModel | None = None,
    ) -> None:
        """Open isolation and environments.

        Args:
            on_episode: Called with each ended episode of `stream`, aborted ones too, in the iterating thread.
            pins: The run's pinned tools. None: tools are pinned for this rollout only.
            teacher: The model for scoring trained tokens.

        Raises:
            ConfigError: Settings exclude each other.
        """
        settings = experiment.ajet
        self._settings = settings
        self._config = experiment.config
        self._base = experiment.base
        self._run_id, self._on_episode = run_id, on_episode
        engine = gateway.engine if settings.rollout.deterministic else None
        self._round_engine = engine if isinstance(engine, RoundEngine) else None
        self.breaker = Breaker(settings.rollout.breaker, on=not settings.rollout.deterministic)
        self.judge_caller = JudgeCaller(judge, settings, gateway.decode)
        self._teacher = teacher
        teacher_scorer = TeacherScorer(teacher, settings) if teacher is not None else None
        builder = EpisodeBuilder.open(experiment)
        self._loop_thread = LoopThread("ajet-rollout")
        self.loop = self._loop_thread.loop
        self.attempts = AttemptRunner(experiment, gateway, workflow_class, self.loop, pins or ToolPins())
        self._episodes = EpisodePlayer(
            self.attempts, self.judge_caller, teacher_scorer, self.breaker, builder, settings.rollout.max_retries
        )
        self._batches: dict[InflightBatch, Future[None]] = {}
        self._single_slots: Slots | None = None
        """The slots of all groups of `play_group`."""
        self._single_groups: dict[Future[Group], list[InflightGroup]] = {}
        """Each future of `play_group`, with the group once created. Only the loop uses the groups."""
        self._closed = False

    @property
    def abandoned_count(self) -> int:
        """The number of workflows whose code still runs although their attempt was stopped."""
        return self.attempts.abandoned_count

    def play(self, tasks: Sequence[tuple[int, Task]], **options: Any) -> Iterator[Group]:
        """Yield the groups that `stream` selects, for callers that ignore returned tasks. Arguments: as in `stream`."""
        with contextlib.closing(self.stream(tasks, **options)) as ends:
            for end in ends:
                if isinstance(end, ClosedGroup) and end.is_selected:
                    yield end.group

    def stream(
        self,
        tasks: Sequence[tuple[int, Task]],
        *,
        step: int,
        split: Split,
        repeats: int | None = None,
        sampling: Sampling | None = None,
        keep: int | None = None,
        finished: Collection[tuple[int, int]] = (),
    ) -> Generator[ClosedGroup | ReturnedTask, None, None]:
        """Play each task `repeats` times, and yield each closed group or returned task when it ends.

        Leaving the iteration early, also by an exception, aborts the running episodes.

        Args:
            tasks: (position in the training order, task) pairs.
            repeats: Attempts per task. Default: the setting of the split.
            sampling: Default: the setting of the split.
            keep: Stop after this number of groups with a learning signal. None selects all groups, or, with
                `rollout.enable_oversample` in training, `data.train_batch_size` groups.
            finished: (position, repeat) of attempts that earlier plays have finished, so are not played again. A task
                without any remaining attempt has no group.
        """
        if self._closed:
            raise RuntimeError("the rollout is closed")
        rollout, debug = self._settings.rollout, self._settings.debug
        if repeats is None:
            repeats = choose_repeats(self._settings, split)
        if keep is None and split == "train" and rollout.enable_oversample:
            keep = self._settings.data.train_batch_size
        limit = debug.debug_max_parallel if split == "debug" else rollout.max_env_worker
        if self._round_engine is not None:
            self._round_engine.begin()
        keep_rule = (
            None if keep is None else KeepRule(keep, open_algorithm(self._settings, base=self._base).learns_from)
        )
        batch = InflightBatch(keep_rule, in_order=rollout.deterministic)
        options = PlayOptions(step, split, sampling or choose_sampling(self._settings, split), repeats)
        running = asyncio.run_coroutine_threadsafe(
            self._play_tasks(batch, _list_remaining(tasks, repeats, finished), options, limit), self.loop
        )
        running.add_done_callback(lambda future: _end_events(batch, future))
        self._batches[batch] = running
        try:
            with reduce_collections():
                while (event := batch.events.get()) is not None:
                    if isinstance(event, BaseException):
                        raise event
                    if isinstance(event, ClosedGroup | ReturnedTask):
                        yield event
                    elif self._on_episode is not None:
                        self._on_episode(event)
        finally:
            self._batches.pop(batch, None)
            if not running.done() and not self.loop.is_closed():
                self.loop.call_soon_threadsafe(batch.stop, "interrupted")
                _await_end(running)

    def play_group(
        self,
        order: int,
        task: Task,
        *,
        step: int,
        split: Split,
        repeats: int,
        finished: Collection[int] = (),
        on_end: Callable[[Episode], None] | None = None,
        sampling: Sampling | None = None,
    ) -> Future[Group]:
        """Play one task in parallel with all others, for callers with tasks one by one (samplers, verl's workers).

        All groups of this method share `max_env_worker`. `on_episode` does not cover such groups.

        Args:
            order: Position of the task in the training order.
            finished: Repeats that earlier plays have finished, so are not played again.
            on_end: Called with each ended episode, before the group closes, on the rollout's loop. Must not block.
            sampling: Default: the sampling of the split.
        """
        if self._closed:
            raise RuntimeError("the rollout is closed")
        remaining = [repeat for repeat in range(repeats) if repeat not in finished]
        groups: list[InflightGroup] = []
        options = PlayOptions(step, split, sampling or choose_sampling(self._settings, split), repeats)
        played = asyncio.run_coroutine_threadsafe(
            self._play_single(groups, order, task, remaining, options, on_end), self.loop
        )
        self._single_groups[played] = groups
        played.add_done_callback(lambda played: self._single_groups.pop(played, None))
        return played

    def stop_group(self, played: Future[Group]) -> None:
        """Abort the running episodes of a group of `play_group`. The group closes with the ended episodes.

        A group that is closed already is not changed.

        Args:
            played: The future returned by `play_group`.
        """
        groups = self._single_groups.get(played)
        if groups is not None:  # on the second turn of the loop, when a just requested group has been created
            self.loop.call_soon_threadsafe(self.loop.call_soon, _stop_groups, groups)

    def close(self) -> None:
        """Abort running episodes and release threads and processes, promptly. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for batch, running in list(self._batches.items()):
            self.loop.call_soon_threadsafe(batch.stop, "interrupted")
            _await_end(running)
        for future in list(self._single_groups):
            self.stop_group(future)
        for future in list(self._single_groups):
            _await_end(future)
        self.attempts.stop()
        self.judge_caller.close()
        self.attempts.close()
        if self._teacher is not None:
            _await_end(asyncio.run_coroutine_threadsafe(self._teacher.leave(), self.loop))
        self._loop_thread.stop(STOP_TIMEOUT)

    # The methods below run on the rollout's loop.

    async def _play_tasks(
        self, batch: InflightBatch, tasks: Sequence[tuple[int, Task, list[int]]], options: PlayOptions, limit: int
    ) -> None:
        """Play all attempts of the tasks and finish the batch.

        Args:
            tasks: (order, task, repeats) of each group: position in the training order, task, attempts to play.
            limit: Number of episodes that may run in parallel.
        """
        total = sum(len(repeats) for _, _, repeats in tasks)
        slots = Slots(limit, total, self._round_engine.expect if self._round_engine else None)
        runs = []
        for index, (order, task, repeats) in enumerate(tasks):
            group = self._make_group(task, order, index, len(repeats), options, batch.take_closed)
            batch.groups.append(group)
            runs += self._start_episodes(group, slots, repeats, options, batch.events.put)
        await _await_all(runs)
        batch.finish()

    async def _play_single(
        self,
        groups: list[InflightGroup],
        order: int,
        task: Task,
        repeats: Sequence[int],
        options: PlayOptions,
        on_end: Callable[[Episode], None] | None,
    ) -> Group:
        """Play one group. The created group is added to `groups`."""
        if self._single_slots is None:
            self._single_slots = Slots(self._settings.rollout.max_env_worker, 0)
        closed: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        group = self._make_group(
            task, order, 0, len(repeats), options, lambda group: closed.set_result(group.build_group())
        )
        runs = self._start_episodes(group, self._single_slots, repeats, options, on_end)
        groups.append(group)
        with reduce_collections():
            await _await_all(runs)
        return await closed

    def _make_group(
        self,
        task: Task,
        order: int,
        index: int,
        repeats: int,
        options: PlayOptions,
        on_close: Callable[[InflightGroup], None],
    ) -> InflightGroup:
        """Return the group of a task, with a ranker if the judge compares its attempts."""
        rollout = self._settings.rollout
        deadline, min_group = rollout.group_deadline, rollout.min_group
        group = InflightGroup(task, order, index, repeats, deadline=deadline, min_group=min_group, on_close=on_close)
        key = f"{self._settings.seed}/{order}"
        group.ranker = self.judge_caller.open_ranker(
            repeats, options.split, key, group.note_arrival, attempt_count=options.repeats
        )
        return group

    def _start_episodes(
        self,
        group: InflightGroup,
        slots: Slots,
        repeats: Sequence[int],
        options: PlayOptions,
        on_end: Callable[[Episode], None] | None,
    ) -> list[asyncio.Task[None]]:
        """Start one asyncio task per repeat of the group's task, and return the asyncio tasks."""
        runs = []
        for repeat in repeats:
            identity = Identity(self._run_id, options.split, options.step, group.task, group.order, group.index, repeat)
            episode = self._episodes.play(group, slots, identity, options.sampling, on_end)
            runs.append(asyncio.ensure_future(episode))
        return runs


async def _await_all(runs: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all tasks. If a task raises, cancel the others."""
    try:
        await asyncio.gather(*runs)
    finally:
        for run in runs:
            run.cancel()


def _list_remaining(
    tasks: Sequence[tuple[int, Task]], repeats: int, finished: Collection[tuple[int, int]]
) -> list[tuple[int, Task, list[int]]]:
    """Return each task with its repeats that are not in `finished`. Tasks without a remaining repeat are omitted."""
    remaining = [
        (order, task, [repeat for repeat in range(repeats) if (order, repeat) not in finished]) for order, task in tasks
    ]
    return [entry for entry in remaining if entry[2]]


def _end_events(batch: InflightBatch, future: Future[None]) -> None:
    """End the events of a batch whose play was cancelled or failed. Their reader would wait for ever otherwise."""
    problem = None if future.cancelled() else future.exception()
    if problem is not None:
        batch.events.put(problem)
    elif future.cancelled():
        batch.events.put(None)


def _stop_groups(groups: list[InflightGroup]) -> None:
    """Abort the running episodes of the groups."""
    for group in groups:
        group.stop("interrupted")


def _await_end(future: Future[Any]) -> None:
    """Wait STOP_TIMEOUT seconds for a future, then cancel the future."""
    try:
        future.exception(timeout=STOP_TIMEOUT)
    except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
        future.cancel()
