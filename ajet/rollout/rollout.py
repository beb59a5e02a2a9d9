"""Rollout: tasks in, groups of episodes out.

Invariants: every repeat of every task ends as exactly one episode, whatever happens to it; one episode's failure
touches no other; nothing of the user's runs on the rollout's own loop, so that timeouts, deadlines and stops are
heard whatever user code does. `play` blocks the caller's thread only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ajet.algorithm import opened
from ajet.engine.contract import Sampling
from ajet.environment.pinned import Pins
from ajet.rollout.attempt import Identity
from ajet.rollout.attempts import Attempts
from ajet.rollout.breaker import Breaker
from ajet.rollout.episodes import Episodes
from ajet.rollout.garbage_collection import rare_collections
from ajet.rollout.group import GroupPlay
from ajet.rollout.own_loop import OwnLoop
from ajet.rollout.play import Closed, GivenBack, Play, PlayTally, Wanted
from ajet.rollout.rounds import RoundEngine
from ajet.rollout.sampling import split_repeats, split_sampling
from ajet.rollout.slots import Slots
from ajet.rollout.teaching import Teaching
from ajet.rollout.train_turn import TrainTurn
from ajet.rollout.verdicts import Verdicts
from ajet.schema.episode import Episode, Group, Split
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.gateway import Gateway
    from ajet.rollout.teaching import Teacher
    from ajet.task_judge import Judge

STOP_TIME = 5.0
"""Seconds that a stopped play gets to take in what its episodes left."""


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
        pins: Pins | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """`on_episode` sees each episode as it ends, aborted ones too, in the thread that iterates over `play`. `pins`:
        the run's tools; without it, those of this rollout. `teacher`: whom what is trained on is shown to.

        Raises ConfigError for settings that exclude each other.
        """
        settings = experiment.ajet
        self._settings, self._config, self._base = settings, experiment.config, experiment.base
        self._run_id, self._on_episode = run_id, on_episode
        self._rounds = _rounds_of(gateway, settings)
        self._breaker = Breaker(settings.rollout.breaker, on=not settings.rollout.deterministic)
        self._verdicts = Verdicts(judge, settings, gateway.decode)
        self._teacher = teacher
        teaching = Teaching(teacher, settings) if teacher is not None else None
        turn = TrainTurn.of(experiment)
        self._own = OwnLoop("ajet-rollout")
        self._loop = self._own.loop
        self._attempts = Attempts(experiment, gateway, workflow_class, self._loop, pins or Pins())
        self._episodes = Episodes(self._attempts, self._verdicts, teaching, self._breaker, settings, turn)
        self._plays: dict[Play, Future[None]] = {}
        self._shared: Slots | None = None
        self._beside: dict[Future[Group], list[GroupPlay]] = {}
        """What `play_group` plays, with its group once that is made; the groups are the loop's."""
        self._closed = False
        self.tally = PlayTally()
        """What the last play came to."""

    @property
    def abandoned(self) -> int:
        """Workflows that were stopped, could not be ended, and still run."""
        return self._attempts.abandoned

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
            self._conduct(play, _left(tasks, repeats, over), step, split, sampling, limit, repeats), self._loop
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
            if not conducted.done() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(play.stop, "interrupted")
                _wait(conducted)
            play.tally.abandoned = self.abandoned

    def play_group(
        self,
        order: int,
        task: Task,
        *,
        step: int,
        split: Split,
        repeats: int,
        over: Collection[int] = (),
        on_end: Callable[[Episode], None] | None = None,
        sampling: Sampling | None = None,
    ) -> Future[Group]:
        """Play one task beside whatever else is played, for those who are handed tasks one by one, as samplers and
        verl's workers are. All groups begun so share `max_env_worker`; `on_episode` and `tally` know nothing of them.

        `over`: attempts that were played before and are not played again: the group lacks them. `on_end` sees each
        episode as it ends, before its group closes, on the rollout's loop: it must not wait. `sampling` defaults to the
        split's own."""
        if self._closed:
            raise RuntimeError("the rollout is closed")
        left = [repeat for repeat in range(repeats) if repeat not in over]
        made: list[GroupPlay] = []
        sampling = sampling or split_sampling(self._settings, split)
        alone = self._alone(made, order, task, step, split, left, repeats, on_end, sampling)
        played = asyncio.run_coroutine_threadsafe(alone, self._loop)
        self._beside[played] = made
        played.add_done_callback(lambda played: self._beside.pop(played, None))
        return played

    def stop_group(self, played: Future[Group]) -> None:
        """Abort what still runs of a group that `play_group` began and nobody wants any more: it closes with what
        there is. A no-op for one that has closed."""
        made = self._beside.get(played)
        if made is not None:  # a second turn of the loop: by then a group that was just asked for is made
            self._loop.call_soon_threadsafe(self._loop.call_soon, _stop, made)

    def close(self) -> None:
        """Abort what runs and release threads and processes, promptly. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for play, conducted in list(self._plays.items()):
            self._loop.call_soon_threadsafe(play.stop, "interrupted")
            _wait(conducted)
        for played in list(self._beside):
            self.stop_group(played)
        for played in list(self._beside):
            _wait(played)
        self._attempts.stop()
        self._verdicts.close()
        self._attempts.close()
        if self._teacher is not None:
            _wait(asyncio.run_coroutine_threadsafe(self._teacher.leave(), self._loop))
        self._own.stop(STOP_TIME)

    async def _conduct(
        self,
        play: Play,
        tasks: Sequence[tuple[int, Task, list[int]]],
        step: int,
        split: Split,
        sampling: Sampling,
        limit: int,
        whole: int,
    ) -> None:
        """`whole`: attempts of a group, those that are over too."""
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
            group.ranking = self._verdicts.ranking(group, split, self._settings.seed, of=whole)
            play.groups.append(group)
            for repeat in repeats:
                identity = Identity(self._run_id, split, step, task, order, index, repeat)
                runs.append(asyncio.ensure_future(self._episodes.one(play, group, slots, identity, sampling)))
        try:
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        play.finish()

    async def _alone(
        self,
        made: list[GroupPlay],
        order: int,
        task: Task,
        step: int,
        split: Split,
        repeats: Sequence[int],
        whole: int,
        on_end: Callable[[Episode], None] | None,
        sampling: Sampling,
    ) -> Group:
        rollout, play = self._settings.rollout, Play(None, in_order=False)
        if self._shared is None:
            self._shared = Slots(rollout.max_env_worker, 0)
        closed: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        group = GroupPlay(
            task,
            order,
            0,
            len(repeats),
            deadline=rollout.group_deadline,
            min_group=rollout.min_group,
            on_close=lambda group: closed.set_result(group.group()),
        )
        group.ranking = self._verdicts.ranking(group, split, self._settings.seed, of=whole)
        identities = [Identity(self._run_id, split, step, task, order, 0, repeat) for repeat in repeats]
        played = (self._episodes.one(play, group, self._shared, each, sampling, on_end) for each in identities)
        runs = [asyncio.ensure_future(each) for each in played]
        made.append(group)
        try:
            with rare_collections():
                await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        return await closed


def _left(
    tasks: Sequence[tuple[int, Task]], repeats: int, over: Collection[tuple[int, int]]
) -> list[tuple[int, Task, list[int]]]:
    """Each task with the attempts that are not over; a task of which all are is not there."""
    left = [(order, task, [at for at in range(repeats) if (order, at) not in over]) for order, task in tasks]
    return [each for each in left if each[2]]


def _rounds_of(gateway: Gateway, settings: AjetConfig) -> RoundEngine | None:
    rollout = settings.rollout
    if not rollout.deterministic:
        return None
    engine = gateway.engine
    return engine if isinstance(engine, RoundEngine) else None


def _end(play: Play, future: Future[None]) -> None:
    problem = None if future.cancelled() else future.exception()
    if problem is not None:
        play.events.put(problem)
    elif future.cancelled():
        play.events.put(None)


def _stop(groups: list[GroupPlay]) -> None:
    for group in groups:
        group.stop("interrupted")


def _wait(future: Future[Any]) -> None:
    try:
        future.exception(timeout=STOP_TIME)
    except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
        future.cancel()
