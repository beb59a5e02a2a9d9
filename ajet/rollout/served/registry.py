"""EpisodeRegistry: opens and ends the episodes of external agents.

Invariants: an episode ends exactly once: by a client's report, by deletion, by an idle or time limit, or when the
registry closes. Every started episode becomes a result, alone or in a group. An end is acknowledged once the episode
store has the end on the disk. An unrecorded end is no end: the client or the registry tries again until the episode is
given up and the place in the group is free again. The state belongs to a separate loop without user code and without
the gateway, and the loop never waits for a store. The coroutines may be awaited from any loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger

from ajet.gateway import Refused
from ajet.rollout.attempt import AttemptResult
from ajet.rollout.breaker import Breaker
from ajet.rollout.episode import EpisodeBuilder
from ajet.rollout.judge_caller import JudgeCaller
from ajet.rollout.runtime import LoopThread
from ajet.rollout.served.deadlines import DeadlineWatcher
from ajet.rollout.served.episode import (
    EpisodeRequest,
    ServedEpisode,
    describe_given_up,
    describe_open,
    describe_outcome,
)
from ajet.rollout.served.finisher import EpisodeFinisher, EpisodeStore
from ajet.rollout.served.groups import OpenGroup, OpenGroups, call_store, call_store_or_refuse
from ajet.rollout.served.opener import AdmissionControl, EpisodeOpener, HeldOutTasks, describe_opened
from ajet.rollout.served.ranker import ServedRanker, needs_ranking
from ajet.rollout.served.results import EndedEpisodes, ResultQueue
from ajet.schema.episode import Episode, Failure, Split
from ajet.schema.task import Task, WorkflowOutput
from ajet.schema.tool_use import ToolUse
from ajet.store import TRANSIENT_ERRORS, Store

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.gateway import Gateway
    from ajet.task_judge import Judge
    from ajet.task_reader import TaskOrder

T = TypeVar("T")
CLOSING = "closing"
"""The party that ended the episodes open at the registry's close. Such attempts do not count."""
STOP_TIMEOUT = 5.0
"""Seconds for the registry's thread to end."""


class EpisodeRegistry:
    """Opens and ends the episodes of external agents.

    With a `backlog`, `results` gets complete groups for a trainer, otherwise single episodes.
    """

    def __init__(
        self,
        experiment: Experiment,
        gateway: Gateway,
        judge: Judge,
        store: Store,
        tasks: TaskOrder | None,
        *,
        run_id: str,
        split: Split,
        backlog: int | None = None,
        episode_store: EpisodeStore | None = None,
        held_out: Sequence[Task] = (),
    ) -> None:
        """Start the registry's loop.

        Args:
            tasks: The task reader's order. None: clients bring all tasks themselves.
            split: The split of training episodes.
            backlog: Maximum number of complete groups waiting for the trainer. None: no trainer takes groups.
            episode_store: The store of ended episodes, written before the acknowledgement. None: no store.
            held_out: Tasks excluded from training.
        """
        settings = experiment.ajet
        self._settings = settings
        self._gateway = gateway
        self._store = store
        self._backlog = backlog
        self.judge_caller = JudgeCaller(judge, settings, gateway.decode)
        self.breaker = Breaker(settings.rollout.breaker)
        builder = EpisodeBuilder.open(experiment)
        ranks = self.judge_caller.is_comparing and backlog is not None and settings.rollout.num_repeat > 1
        self._ranker = ServedRanker(self.judge_caller, builder, settings.seed, self._take_ranking)
        self.finisher = EpisodeFinisher(gateway, self.judge_caller, builder, episode_store, ranks=ranks)
        self.open_episodes: dict[str, ServedEpisode] = {}
        self._admission = AdmissionControl(settings, self.breaker, self.open_episodes, self._count_complete, backlog)
        self._opener = EpisodeOpener(gateway, settings, run_id=run_id, split=split, trained_on=backlog is not None)
        self._ended_episodes = EndedEpisodes()
        self.groups = OpenGroups(store, tasks, settings.rollout.num_repeat)
        self._held_out = HeldOutTasks(held_out)
        self._is_closing = False
        self.results = ResultQueue()
        self.thread = LoopThread("ajet-desk")
        self.loop = self.thread.loop
        self.deadlines = DeadlineWatcher(
            settings,
            self.open_episodes,
            self.groups,
            end_episode=self._end_episode,
            give_up=self._give_up,
            close=self._close_early,
        )
        self.deadlines.start(self.loop, self.results.fail)

    async def open(self, request: EpisodeRequest) -> dict[str, Any]:
        """Open an episode. Return the name, task, address and key. Raises Refused."""
        return await self._run_on_loop(self._begin_episode(request))

    async def finish(
        self, name: str, outcome: WorkflowOutput | Failure, uses: Sequence[ToolUse] = ()
    ) -> dict[str, Any]:
        """End an episode as a client reports it, and return the reply after the judge's verdict.

        A repeated request gets the same reply.

        Args:
            outcome: The agent's output, or its failure.
            uses: Tool uses to record.

        Raises:
            Refused: The episode is unknown or has another end, or the end cannot be recorded now. In the last case the
                same request may succeed later.
        """
        return await self._run_on_loop(self._finish_episode(name, outcome, uses))

    async def delete(self, name: str) -> dict[str, Any]:
        """End an episode at a client's request and record it as aborted. Raises Refused for an unknown episode."""
        return await self._run_on_loop(self._delete_episode(name))

    async def get_state(self, name: str) -> dict[str, Any]:
        """Return the JSON reply on an open or ended episode. Raises Refused for an unknown episode."""
        return await self._run_on_loop(self._describe_state(name))

    async def get_overview(self) -> dict[str, Any]:
        """Return the open episodes, and counts over all."""
        return await self._run_on_loop(self._describe_overview())

    def restore(self) -> int:
        """Restore an earlier server's episodes from the store. Return the number of episodes.

        Blocks. Call this before the first client connects.
        """
        return asyncio.run_coroutine_threadsafe(self._restore_episodes(), self.loop).result()

    @property
    def open_count(self) -> int:
        """The number of open episodes, from any thread."""
        return len(self.open_episodes)

    @property
    def has_pending(self) -> bool:
        """True if an episode is open or being ranked, or a result was not taken yet.

        May be called in any thread and in a signal handler.
        """
        return bool(self.open_episodes) or self._count_complete() > 0

    def close(self) -> None:
        """Abort all open episodes and hand over incomplete groups. Idempotent, blocks."""
        if self._is_closing:
            return
        self._is_closing = True
        asyncio.run_coroutine_threadsafe(self._close_all(), self.loop).result()
        self.judge_caller.close()
        self.thread.stop(STOP_TIMEOUT)

    async def _run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to the end on the registry's loop, even if the client disconnects."""
        if self._is_closing:
            work.close()
            raise make_closing_refusal()
        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop)))

    # The methods below run on the registry's loop.

    async def _restore_episodes(self) -> int:
        """Add the episodes that an earlier server put into the store, and return their number."""
        complete, incomplete = self._store.closed(), self._store.lease_kept()
        for lease in sorted([*complete, *incomplete], key=lambda lease: lease.attempts[0].episode.ended):
            for record in lease.attempts:
                self._ended_episodes.remember(describe_outcome(record.episode), record.ended_by)
            if lease.attempts[0].alone:
                self.results.put(lease.attempts[0].episode)
                continue
            group = self.groups.restore_group(lease)
            if lease in complete:
                group.close()
            if group.is_complete:
                await self._finish_group(group, is_reported=lease in complete)
        return sum(len(lease.attempts) for lease in (*complete, *incomplete))

    async def _begin_episode(self, request: EpisodeRequest) -> dict[str, Any]:
        """Open an episode if one more is allowed. A failed opening gives the breaker's probe back. Raises Refused."""
        is_probe = self._admission.refuse_more()
        self._admission.opening += 1
        try:
            return await self._choose_task(request, is_probe)
        except BaseException:
            self.breaker.report_end(None, probe=is_probe, aborted=True)
            raise
        finally:
            self._admission.opening -= 1

    async def _choose_task(self, request: EpisodeRequest, is_probe: bool) -> dict[str, Any]:
        """Open an episode for the client's task, a held-out task, or the store's next one. A failed opening takes no
        held-out turn.
        """
        task = request.task
        if task is not None or not request.held_out:
            return await self._open_episode(request, task, is_probe)
        task = self._held_out.take_next()
        try:
            return await self._open_episode(request, task, is_probe, is_held_out_turn=True)
        except BaseException:
            self._held_out.return_turn(task)
            raise

    async def _open_episode(
        self, request: EpisodeRequest, task: Task | None, is_probe: bool, *, is_held_out_turn: bool = False
    ) -> dict[str, Any]:
        """Open an episode. A training episode joins a group of its task; without `task` the store chooses the task.

        Args:
            is_probe: True if the episode tests during an outage whether the outage is over.
            is_held_out_turn: True for the server's held-out tasks.
        """
        group = None
        if task is not None:
            self._admission.refuse_crowded(task)  # before the store gives out a position
        if task is None or (request.trains and self._backlog is not None):
            if not request.trains:
                raise Refused("An episode with `train: false` needs a `task`.", param="task")
            group = await self.groups.find_or_make(task, lambda group: not self._admission.is_crowded(group.task))
            task = group.task
        lease = group.lease if group is not None else await call_store_or_refuse(self._store.bring)
        if self._is_closing:
            raise make_closing_refusal()
        self._admission.refuse_crowded(task)
        repeat = group.take_place() if group is not None else 0
        try:
            served = self._opener.open(
                request, task, group, lease, repeat,
                is_probe=is_probe, is_held_out_turn=is_held_out_turn, version=self._policy_version,
            )  # fmt: skip
        except BaseException:
            if group is not None:
                group.free_place(repeat)
            raise
        self.open_episodes[served.identity.uuid] = served
        return describe_opened(served, self._policy_version)

    async def _finish_episode(
        self, name: str, outcome: WorkflowOutput | Failure, uses: Sequence[ToolUse]
    ) -> dict[str, Any]:
        """End an episode as a client reports it, unless it has ended. Raises Refused if another party ended it."""
        if name not in self._ended_episodes:
            served = self._get_open(name)
            # Not for a repeated request, which reports the same tool uses again.
            if served.ending is None:
                for use in uses:
                    served.session.tool_used(use)
            await self._end_episode(served, AttemptResult.of(outcome), "client")
        view = self._ended_episodes[name]
        if view["ended_by"] != "client":
            raise Refused(
                f"The episode has already ended: {view['status']}, {view['reason']}.",
                status=409,
                code="episode_ended",
            )
        return view

    async def _delete_episode(self, name: str) -> dict[str, Any]:
        """Abort an open episode for its client and return the reply on its end. A repeated request gets
        the same reply.
        """
        if name not in self._ended_episodes:
            served = self._get_open(name)
            if not served.stopped.done():
                served.stopped.set_result("deleted")
            await self._end_or_give_up(served, "deleted", "delete")
        return self._ended_episodes[name]

    async def _describe_state(self, name: str) -> dict[str, Any]:
        """Return the reply on an open or ended episode. Raises Refused for an unknown one."""
        return (
            self._ended_episodes[name]
            if name in self._ended_episodes
            else describe_open(self._get_open(name), self._policy_version)
        )

    async def _describe_overview(self) -> dict[str, Any]:
        """Return the names of open episodes and the counts of episodes, groups and held-out tasks."""
        return {
            "open": list(self.open_episodes),
            "ended": dict(self._ended_episodes.counts),
            "open_groups": len(self.groups),
            "waiting_groups": self.results.qsize() if self._backlog is not None else 0,
            "held_out_tasks": len(self._held_out),
            "version": self._policy_version,
        }

    def _count_complete(self) -> int:
        """Return the number of complete groups waiting for the trainer."""
        return self.results.qsize() + self._ranker.inflight_count

    @property
    def _policy_version(self) -> int:
        return getattr(self._gateway.engine, "version", 0)

    def _get_open(self, name: str) -> ServedEpisode:
        """Return an open episode by name. Raises Refused (404) if there is none."""
        served = self.open_episodes.get(name)
        if served is None:
            raise Refused(f"There is no episode {name[:64]}.", status=404, code="episode_not_found")
        return served

    async def _end_episode(self, served: ServedEpisode, result: AttemptResult, cause: str) -> Episode:
        """Judge and record an episode, and hand it to its group. Concurrent callers wait for the same end.

        Args:
            result: The result of the attempt.
            cause: The cause of the end: "client", "delete", "timeout" or "closing" (the server's shutdown).
        """
        # Start a task for the first call, or to repeat a recording that has failed.
        if served.ending is None or (served.unrecorded_since is not None and served.ending.done()):
            served.ending = asyncio.ensure_future(self._conclude_episode(served, result, cause))
        return await asyncio.shield(served.ending)

    async def _conclude_episode(self, served: ServedEpisode, result: AttemptResult, cause: str) -> Episode:
        """Judge the episode unless that is done, record it and hand it over. Raises Refused if recording fails."""
        if served.built is None:
            try:
                served.built, served.ended_by = await self.finisher.judge_episode(served, result), cause
            except BaseException:
                self._leave_group(served)
                self.breaker.report_end(None, probe=served.is_probe, aborted=True)
                raise
            await self._free_if_lost(served)
            aborted = served.built.status == "aborted"
            if aborted:
                self._return_held_out(served)
            self.breaker.report_end(served.built.failure, probe=served.is_probe, aborted=aborted)
        episode = served.built
        if cause != CLOSING:
            await self.finisher.record_episode(served)
        self._ended_episodes.counts[episode.status] += 1
        self._ended_episodes.remember(describe_outcome(episode), served.ended_by)
        await self._hand_over(served.group, episode)
        self.open_episodes.pop(episode.uuid, None)  # only now: closing waits until no episode is open
        return episode

    async def _free_if_lost(self, served: ServedEpisode) -> None:
        """Free the place of an attempt lost to a failure outside of the agent, so that it is played again.

        The lost attempt leaves the group: it gets a position of its own outside the training order, and the split
        "debug".
        """
        episode, group = served.built, served.group
        if episode is None or group is None or episode.failure is None or not episode.failure.retryable:
            return
        if group.may_repeat(episode.repeat, self._settings.rollout.max_retries):
            try:
                lease = await call_store(self._store.bring)
            except TRANSIENT_ERRORS as error:
                logger.warning(
                    "attempt {} was lost to a failure outside of the agent, but it cannot be repeated: {}",
                    episode.uuid,
                    error,
                )
                return
            group.free_place(episode.repeat)
            served.group, served.lease = None, lease
            served.built = replace(episode, split="debug", order=served.lease.order, group=episode.uuid)

    def _give_up(self, served: ServedEpisode, reason: str, cause: str) -> None:
        """Drop an episode whose end could not be recorded. Its place in the group is free again.

        Does nothing while the episode's end is still in progress.

        Args:
            reason: The reason for clients.
            cause: The cause of the end, as in `_end_episode`.
        """
        assert served.built is not None and served.ending is not None
        if served.identity.uuid not in self.open_episodes or not served.ending.done():
            return
        logger.error("episode {} was given up ({}): its outcome could not be recorded", served.identity.uuid, reason)
        self._leave_group(served)
        self._ended_episodes.counts["aborted"] += 1
        self._ended_episodes.remember(describe_given_up(served.built, reason), cause)

    def _return_held_out(self, served: ServedEpisode) -> None:
        """Give the episode's held-out task another turn, if the episode took a turn."""
        if served.is_held_out_turn:
            served.is_held_out_turn = False
            self._held_out.return_turn(served.identity.task)

    def _leave_group(self, served: ServedEpisode) -> None:
        """Forget an open episode, and free its held-out turn and its place in the group for another attempt."""
        self.open_episodes.pop(served.identity.uuid, None)
        self._return_held_out(served)
        if served.group is not None:
            served.group.free_place(served.identity.repeat)

    async def _hand_over(self, group: OpenGroup | None, episode: Episode) -> None:
        """Add an ended episode to its group, or to the results if no trainer takes groups. Finish a group with its last
        episode.
        """
        if group is not None:
            group.episodes.append(episode)
        if group is None or self._backlog is None:
            self.results.put(episode)
        if group is not None and group.is_complete:
            await self._finish_group(group)

    async def _finish_group(self, group: OpenGroup, *, is_reported: bool = False) -> None:
        """Pass a complete group to the ranker or the trainer.

        Args:
            is_reported: True if the store has already noted that the group is complete.
        """
        if group in self.groups:
            trains = self._backlog is not None
            # A group cut short by the closing is not reported: a later server continues the group.
            await self.groups.remove(group, report=trains and not self._is_closing and not is_reported)
            if not self._is_closing and any(map(needs_ranking, group.episodes)):
                self._ranker.begin(group)
            elif trains:
                self.results.put(group.build_group())

    def _take_ranking(self, group: OpenGroup, ranked: Sequence[Episode], failure: Failure | None) -> None:
        """Pass a ranked group to the trainer, and update the replies remembered for its episodes."""
        if ranked:
            self.breaker.report_end(failure, probe=False)
        for episode in ranked:
            self._ended_episodes.replace(describe_outcome(episode))
        self.results.put(group.build_group())

    async def _end_or_give_up(self, served: ServedEpisode, reason: str, cause: str) -> None:
        """End an episode without a client's request. If the end cannot be recorded, drop the episode."""
        while served.identity.uuid in self.open_episodes:
            try:
                await self._end_episode(served, AttemptResult(aborted=reason), cause)
            except Refused:
                if cause != CLOSING:
                    self._give_up(served, reason, cause)

    async def _close_early(self, group: OpenGroup, under_way: list[ServedEpisode]) -> None:
        """Close an overdue group with the episodes ended so far.

        Args:
            under_way: Open episodes of the group, which are aborted.
        """
        group.close()
        await self._stop_episodes(under_way, "group_deadline", "server")
        if group.episodes:
            await self._finish_group(group)
        elif group in self.groups:
            await self.groups.return_task(group)

    async def _stop_episodes(self, episodes: list[ServedEpisode], reason: str, cause: str) -> None:
        """Abort the episodes with a reason for clients, and wait until each is recorded or given up."""
        for served in episodes:
            if not served.stopped.done():
                served.stopped.set_result(reason)
        await asyncio.gather(*(self._end_or_give_up(served, reason, cause) for served in episodes))

    async def _close_all(self) -> None:
        """End the checks, the rankings and the open episodes, and hand over the groups as they are."""
        self.deadlines.stop()
        await self._ranker.stop()
        await self._stop_episodes(list(self.open_episodes.values()), "interrupted", CLOSING)
        await self.groups.wait_settled()
        for group in self.groups:
            group.close()
            if group.episodes:
                await self._finish_group(group)


def make_closing_refusal() -> Refused:
    """Return the refusal for clients of a closing registry."""
    return Refused("The server is closing.", status=503, code="closing")
