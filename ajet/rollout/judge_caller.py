"""Calls the judge for ended attempts: one by one, or to compare the attempts of a group.

Invariants: a failed or stopped attempt gets no verdict. If a judge fails, hangs or is stopped, so is the attempt.
Judges run on a separate loop, and the rollout's loop stays free. A ranking starts once all attempts of the group wait
for the ranking or have ended otherwise. Each waiting attempt gets a verdict, or all get the same failure. A waiting
attempt holds neither a slot nor an environment. Until the ranking starts, the breaker does not count a waiting attempt
as in play, because the breaker may pause the very attempt needed for the ranking. A repeated attempt is added again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ajet.environment.loop import in_thread
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.failure import classify_exception
from ajet.rollout.process_rewards import Decode, locate_rewards
from ajet.rollout.runtime import UserLoop, wait_first
from ajet.schema.episode import Failure, Split, Verdict
from ajet.schema.errors import JudgeFailure, RewardFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.judge import JudgeInput, attach_process

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.breaker import BreakerTurn
    from ajet.task_judge import Judge

OTHERS_BEFORE = (
    "no score: the judge compares all attempts of a task, and other attempts of this task were judged before"
)
RETRY_PAUSE = 0.2
"""Seconds before the second call of a failed judge, doubled before each further call."""


CompareAttempts = Callable[[Mapping[int, JudgeInput]], Awaitable[Mapping[int, Verdict]]]
"""Returns the verdicts on attempts. Both mappings have repeats as keys."""


class AttemptRanker:
    """Ranks the attempts of one group, on the rollout's loop."""

    def __init__(self, repeats: int, compare: CompareAttempts, on_arrival: Callable[[], None]) -> None:
        """Wait for `repeats` attempts.

        Args:
            compare: Returns a verdict on each of the given attempts, by repeat.
            on_arrival: Called when another attempt waits.
        """
        self._repeats = repeats
        self._compare_attempts = compare
        self._on_arrival = on_arrival
        self._waiting_attempts: dict[int, tuple[JudgeInput, asyncio.Future[Verdict | Failure], BreakerTurn]] = {}
        self._ended_repeats: set[int] = set()
        self._ranking: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of attempts waiting for a verdict."""
        return len(self._waiting_attempts)

    def add(self, repeat: int, attempt: JudgeInput, turn: BreakerTurn) -> asyncio.Future[Verdict | Failure]:
        """Add an attempt and return a future of its verdict, or of the judge's failure.

        Args:
            repeat: The attempt's number in the group.
            turn: The episode's turn at the breaker. It is left while the attempt waits.
        """
        verdict: asyncio.Future[Verdict | Failure] = asyncio.get_running_loop().create_future()
        self._waiting_attempts[repeat] = (attempt, verdict, turn)
        self._on_arrival()
        self._start_if_complete()
        if self._ranking is None:
            turn.leave()
        return verdict

    def note_end(self, repeat: int) -> None:
        """Note that the attempt of a repeat has ended for good, with a verdict or without."""
        self._ended_repeats.add(repeat)
        self._waiting_attempts.pop(repeat, None)
        self._start_if_complete()

    def _start_if_complete(self) -> None:
        """Start the comparison once each of the group's attempts waits or has ended. The waiting ones then count as
        under way again.
        """
        if (
            self._waiting_attempts
            and len(self._waiting_attempts.keys() | self._ended_repeats) >= self._repeats
            and self._ranking is None
        ):
            self._ranking = asyncio.ensure_future(self._rank_waiting())
            for _, _, turn in self._waiting_attempts.values():
                turn.rejoin()

    async def _rank_waiting(self) -> None:
        """Compare all waiting attempts and set their verdicts. If the judge fails, all get the same failure."""
        waiting = dict(self._waiting_attempts)
        try:
            results: Mapping[int, Verdict | Failure] = await self._compare_attempts(
                {repeat: waiting[repeat][0] for repeat in sorted(waiting)}
            )
        except Exception as problem:  # noqa: BLE001 - the border where a judge's failure becomes data
            failure = classify_exception(problem, "judge")
            results = dict.fromkeys(waiting, failure)
        finally:
            self._ranking = None
            for repeat in waiting:
                self._waiting_attempts.pop(repeat, None)
        for repeat, (_, verdict, _) in waiting.items():
            if not verdict.done():
                verdict.set_result(results[repeat])
        self._start_if_complete()


class JudgeCaller:
    """Calls one judge for all episodes of a rollout or a server."""

    def __init__(self, judge: Judge, settings: AjetConfig, decode: Decode | None) -> None:
        """Start the judge's loop.

        Args:
            decode: Turns sampled ids into text. None for an engine without tokens.
        """
        self._judge = judge
        self._rollout = settings.rollout
        self._decode = decode
        self._is_comparing = getattr(judge, "ranks", None) is not None
        self.loop = UserLoop("ajet-judges", "a judge")

    async def judge_attempt(
        self, identity: Identity, result: AttemptResult, stop_signal: asyncio.Future[str]
    ) -> Verdict | None:
        """Return the verdict, or None with `result.failure` or `result.aborted` set. `stop_signal` ends the judging."""
        if result.aborted or result.failure:
            return None
        if result.capture is not None and result.capture.checks:
            reward = self._rollout.agent_madness_reward
            return Verdict(reward, False, f"output checks found abnormal output: {', '.join(result.capture.checks)}")
        task = _make_judged_task(identity, result)
        for number in range(self._rollout.max_retries + 1):
            verdict = await self._judge_once(task, result, stop_signal)
            if verdict is not None or result.aborted:
                return verdict
            assert result.failure is not None
            if not result.failure.retryable or number == self._rollout.max_retries:
                break
            await wait_first(stop_signal, timeout=RETRY_PAUSE * 2**number)
            if stop_signal.done():
                result.aborted = stop_signal.result()
                break
        return None

    async def _judge_once(
        self, task: WorkflowTask, result: AttemptResult, stop_signal: asyncio.Future[str]
    ) -> Verdict | None:
        """Call the judge once. Without a verdict `result.failure` or `result.aborted` is set."""
        timeout = self._rollout.episode_timeout
        tasks: list[asyncio.Task[Any]] = []
        judged = self._call_judge(task, self._make_judged_output(result), tasks)
        judging = asyncio.wrap_future(self.loop.submit(judged))
        await wait_first(judging, stop_signal, timeout=timeout)
        if not judging.done():
            stood = "" if stop_signal.done() or not tasks else self.loop.locate_task(tasks[0])
            judging.cancel()
            if stop_signal.done():
                result.aborted = stop_signal.result()
                return None
            message = f"the judge did not end within {timeout:g} seconds (rollout.episode_timeout)"
            message += f"; it was last at {stood}" if stood else ""
            result.failure = Failure("judge", "timeout", message, own=True)
            return None
        try:
            verdict = await self._locate_rewards(judging.result(), result)
        except BaseException as problem:  # noqa: BLE001 - the border where a user's judge fails
            result.failure = classify_exception(problem, "judge")
            # The exception came from the judge's code; only a reward of the workflow's own is the agent's fault.
            if result.failure.boundary == "agent" and not isinstance(problem, RewardFailure):
                result.failure.boundary = "judge"
            return None
        result.failure = None
        return verdict

    async def _call_judge(self, task: WorkflowTask, output: WorkflowOutput, tasks: list[asyncio.Task[Any]]) -> Verdict:
        """Return the judge's verdict. The judge's running task is added to `tasks`."""
        if (current := asyncio.current_task()) is not None:
            tasks.append(current)
        return await self._judge.verdict(task, output)

    async def _locate_rewards(self, verdict: Verdict, result: AttemptResult) -> Verdict:
        """Add to each process reward of a verdict the tokens that it rewards."""
        if not verdict.turns and not verdict.process:
            return verdict
        try:
            return await in_thread(locate_rewards, verdict, result.capture, self._decode)
        except JudgeFailure as problem:
            if result.output is not None and result.output.reward is not None:
                raise RewardFailure(str(problem)) from None
            raise

    def _make_judged_output(self, result: AttemptResult) -> WorkflowOutput:
        """Return the output for the judge. Where models rank, a missing answer is the policy's last message."""
        output, capture = result.output, result.capture
        assert output is not None
        delivered = [call for call in capture.calls if call.is_delivered] if capture is not None else []
        if not self._is_comparing or "final_answer" in output.metadata or capture is None or not delivered:
            return output
        reply = delivered[-1].reply
        answer = capture.messages[reply].get("content") if reply is not None else None
        return output.model_copy(update={"metadata": {**output.metadata, "final_answer": answer}})

    def needs_ranking(self, result: AttemptResult) -> bool:
        """True if the attempt is judged by comparison: the judge compares, and the workflow gave no reward."""
        return (
            self._is_comparing
            and not result.aborted
            and result.failure is None
            and not (result.capture is not None and result.capture.checks)
            and result.output is not None
            and result.output.reward is None
            and not result.output.undecided
        )

    def open_ranker(
        self, repeats: int, split: Split, key: str, on_arrival: Callable[[], None], *, attempt_count: int
    ) -> AttemptRanker | None:
        """Return the ranker of a group, or None if each attempt is judged alone.

        Attempts of a validation are not ranked: ranks within a group do not measure the model.

        Args:
            repeats: The number of attempts in this play.
            key: The seed for the order of the attempts in the judge's prompt.
            on_arrival: Called when another attempt waits.
            attempt_count: The number of attempts in the group, including attempts of earlier plays.
        """
        if not self._is_comparing or split == "validation" or attempt_count < 2:
            return None

        async def compare(attempts: Mapping[int, JudgeInput]) -> Mapping[int, Verdict]:
            if repeats < attempt_count:
                return {repeat: Verdict(None, None, OTHERS_BEFORE) for repeat in attempts}
            return await self._compare_attempts(attempts, key)

        return AttemptRanker(repeats, compare, on_arrival)

    @property
    def is_comparing(self) -> bool:
        """True if the judge compares the attempts at a task with each other."""
        return self._is_comparing

    def make_judge_input(self, identity: Identity, result: AttemptResult) -> JudgeInput:
        """Return the attempt in the form compared by the judge."""
        return JudgeInput(_make_judged_task(identity, result), self._make_judged_output(result))

    async def rank_attempts(self, attempts: Mapping[int, JudgeInput], key: str) -> Mapping[int, Verdict] | Failure:
        """Return verdicts on attempts at one task, by repeat, or the judge's failure.

        Args:
            key: The seed for the order of the attempts in the judge's prompt.
        """
        try:
            return await self._compare_attempts(attempts, key)
        except Exception as problem:  # noqa: BLE001 - the border where a judge's failure becomes data
            return classify_exception(problem, "judge")

    async def _compare_attempts(self, attempts: Mapping[int, JudgeInput], key: str) -> Mapping[int, Verdict]:
        """Compare the attempts on the judge's own loop and return the verdicts by repeat."""
        return await asyncio.wrap_future(self.loop.submit(self._judge.compare(attempts, key)))

    async def find_outage(self) -> Failure | None:
        """Return the failure of a comparing judge that is not available now, or None if it is available."""
        try:
            await asyncio.wrap_future(self.loop.submit(self._judge.awake()))
        except Exception as problem:  # noqa: BLE001 - the border where a judge's failure becomes data
            return classify_exception(problem, "judge")
        return None

    async def rank_attempt(
        self,
        ranker: AttemptRanker,
        identity: Identity,
        played: AttemptResult,
        stop_signal: asyncio.Future[str],
        turn: BreakerTurn,
    ) -> Verdict | None:
        """Return the verdict by comparison, or None with `result.failure` or `result.aborted` set."""
        future = ranker.add(identity.repeat, self.make_judge_input(identity, played), turn)
        await wait_first(future, stop_signal)
        if not future.done() and stop_signal.result() == "group_deadline":  # the waiting attempts are compared now
            await wait_first(future)
        if not future.done():
            played.aborted = stop_signal.result()
            return None
        verdict_or_failure = future.result()
        if isinstance(verdict_or_failure, Failure):
            played.failure = verdict_or_failure
            return None
        assert played.output is not None
        try:
            verdict = attach_process(verdict_or_failure, played.output.process, "the workflow's output")
            return await self._locate_rewards(verdict, played)
        except JudgeFailure as problem:
            played.failure = classify_exception(problem, "judge")
            return None

    def close(self) -> None:
        """End the loop and close the judge's connections. Idempotent, does not wait."""
        self.loop.close()
        self._judge.let_go()


def _make_judged_task(identity: Identity, result: AttemptResult) -> WorkflowTask:
    """Return the task for the judge, with the results of tools."""
    task = result.task or identity.make_task()
    uses = result.capture.tool_uses if result.capture is not None else []
    return task.model_copy(update={"tool_results": [f"{use.name}: {use.result}" for use in uses]})
