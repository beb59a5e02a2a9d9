"""What an ended attempt is worth: the checks' verdict, or the judge's, asked in a loop of its own.

Invariant: an episode that failed or was stopped gets no verdict, and a judge that fails, hangs or is stopped makes it
one that failed or was stopped; the loop that asks hears everything meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ajet.environment.services.threads import in_thread
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.failure import classify
from ajet.rollout.isolation.user_loop import UserLoop
from ajet.rollout.own_loop import wait_first
from ajet.rollout.process_rewards import Decode, tied
from ajet.rollout.ranking import Arrived, Ranking
from ajet.schema.episode import Failure, Split, Verdict
from ajet.schema.errors import JudgeFailure, RewardFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.judgement import with_process

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.breaker import Turn
    from ajet.rollout.group import GroupPlay
    from ajet.task_judge import Judge

OTHERS_BEFORE = "no score: others of its group were judged before, and it is compared with all of them or none"
RETRY_PAUSE = 0.2
"""Seconds before the second attempt; doubled before each further one."""


class Verdicts:
    """Asks one judge for all episodes."""

    def __init__(self, judge: Judge, settings: AjetConfig, decode: Decode | None) -> None:
        """`decode` gives the text of sampled ids, if there are any."""
        self._judge, self._rollout, self._decode = judge, settings.rollout, decode
        self._compares = getattr(judge, "ranks", None) is not None
        self._loop = UserLoop("ajet-judges", "a judge")

    async def of(self, identity: Identity, played: AttemptResult, stopped: asyncio.Future[str]) -> Verdict | None:
        """The verdict, or None with `played.failure` or `played.aborted` set. `stopped` ends the asking."""
        if played.aborted or played.failure:
            return None
        if played.capture is not None and played.capture.checks:
            reward = self._rollout.agent_madness_reward
            return Verdict(reward, False, f"abnormal output: {', '.join(played.capture.checks)}")
        assert played.output is not None
        timeout = self._rollout.episode_timeout
        task = judged_task(identity, played)
        for number in range(self._rollout.max_retries + 1):
            asked: list[asyncio.Task[Any]] = []
            judging = asyncio.wrap_future(self._loop.submit(self._verdict(task, self._output(played), asked)))
            await wait_first(judging, stopped, timeout=timeout)
            if not judging.done():
                stood = "" if stopped.done() or not asked else self._loop.stands(asked[0])
                judging.cancel()
                if stopped.done():
                    played.aborted = stopped.result()
                    return None
                message = f"the judge did not end within {timeout:g} seconds (rollout.episode_timeout)"
                message += f"; it stood at {stood}" if stood else ""
                played.failure = Failure("judge", "timeout", message, own=True)
                return None
            try:
                verdict = await self._tied(judging.result(), played)
            except BaseException as problem:  # noqa: BLE001 - the border where a user's judge fails
                played.failure = classify(problem, "judge")
                if played.failure.boundary == "agent" and not isinstance(problem, RewardFailure):
                    played.failure.boundary = "judge"
            else:
                played.failure = None
                return verdict
            if not played.failure.retryable or number == self._rollout.max_retries:
                break
            await wait_first(stopped, timeout=RETRY_PAUSE * 2**number)
            if stopped.done():
                played.aborted = stopped.result()
                break
        return None

    async def _verdict(self, task: WorkflowTask, output: WorkflowOutput, asked: list[asyncio.Task[Any]]) -> Verdict:
        """The judge's verdict; `asked` takes the task that it is asked in."""
        if (current := asyncio.current_task()) is not None:
            asked.append(current)
        return await self._judge.verdict(task, output)

    async def _tied(self, verdict: Verdict, played: AttemptResult) -> Verdict:
        if not verdict.turns and not verdict.process:
            return verdict
        try:
            return await in_thread(tied, verdict, played.capture, self._decode)
        except JudgeFailure as problem:
            if played.output is not None and played.output.reward is not None:
                raise RewardFailure(str(problem)) from None
            raise

    def _output(self, played: AttemptResult) -> WorkflowOutput:
        """The output as its judge is told it: where models rank, what the model said last is the answer of a workflow
        that states none."""
        output, capture = played.output, played.capture
        assert output is not None
        delivered = [call for call in capture.calls if call.is_delivered] if capture is not None else []
        if not self._compares or "final_answer" in output.metadata or capture is None or not delivered:
            return output
        reply = delivered[-1].reply
        said = capture.messages[reply].get("content") if reply is not None else None
        return output.model_copy(update={"metadata": {**output.metadata, "final_answer": said}})

    def ranks(self, played: AttemptResult) -> bool:
        """Whether an attempt's verdict comes by comparison with the others at its task: those to which the
        workflow gave no reward."""
        return (
            self._compares
            and not played.aborted
            and played.failure is None
            and not (played.capture is not None and played.capture.checks)
            and played.output is not None
            and played.output.reward is None
            and not played.output.undecided
        )

    def ranking(self, group: GroupPlay, split: Split, seed: int, *, of: int) -> Ranking | None:
        """What compares the attempts of a group that is trained on; None where each is judged by itself. So are those
        that are measured: places in a group say nothing of the model. `of`: how many attempts the group has, of which
        some may have been played before."""
        if not self._compares or split == "validation" or of < 2:
            return None

        async def ask(arrived: Mapping[int, Arrived]) -> Mapping[int, Verdict]:
            if group.repeats < of:
                return {repeat: Verdict(None, None, OTHERS_BEFORE) for repeat in arrived}
            return await self._compared(arrived, f"{seed}/{group.order}")

        return Ranking(group.repeats, ask, group.arrived)

    @property
    def compares(self) -> bool:
        """Whether attempts at a task are compared with each other."""
        return self._compares

    def arrived(self, identity: Identity, played: AttemptResult) -> Arrived:
        """An attempt as those who compare are told it."""
        return Arrived(judged_task(identity, played), self._output(played))

    async def rank(self, arrived: Mapping[int, Arrived], key: str) -> Mapping[int, Verdict] | Failure:
        """Verdicts of attempts at one task, by repeat, or why there are none. `key`: of the order in which they are
        shown."""
        try:
            return await self._compared(arrived, key)
        except Exception as problem:  # noqa: BLE001 - the border where a judge's failure becomes data
            return classify(problem, "judge")

    async def _compared(self, arrived: Mapping[int, Arrived], key: str) -> Mapping[int, Verdict]:
        return await asyncio.wrap_future(self._loop.submit(self._judge.compare(arrived, key)))

    async def awake(self) -> Failure | None:
        """Why those who compare cannot be asked now."""
        try:
            await asyncio.wrap_future(self._loop.submit(self._judge.awake()))
        except Exception as problem:  # noqa: BLE001 - the border where a judge's failure becomes data
            return classify(problem, "judge")
        return None

    async def compared(
        self, ranking: Ranking, identity: Identity, played: AttemptResult, stopped: asyncio.Future[str], turn: Turn
    ) -> Verdict | None:
        """The verdict by comparison, or None with `played.failure` or `played.aborted` set."""
        told = ranking.of(identity.repeat, self.arrived(identity, played), turn)
        await wait_first(told, stopped)
        if not told.done() and stopped.result() == "group_deadline":  # those that are in are compared
            await wait_first(told)
        if not told.done():
            played.aborted = stopped.result()
            return None
        result = told.result()
        if isinstance(result, Failure):
            played.failure = result
            return None
        assert played.output is not None
        try:
            verdict = with_process(result, played.output.process, "the workflow's output")
            return await self._tied(verdict, played)
        except JudgeFailure as problem:
            played.failure = classify(problem, "judge")
            return None

    def close(self) -> None:
        """End the loop, and close what the judge holds open. Idempotent; does not wait."""
        self._loop.close()
        self._judge.let_go()


def judged_task(identity: Identity, played: AttemptResult) -> WorkflowTask:
    """The task as its judge is told it."""
    task = played.task or identity.make_task()
    uses = played.capture.tool_uses if played.capture is not None else []
    return task.model_copy(update={"tool_results": [f"{use.name}: {use.result}" for use in uses]})
