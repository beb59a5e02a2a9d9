"""What an ended attempt is worth: the checks' verdict, or the judge's, asked in a loop of its own.

Invariant: an episode that failed or was stopped gets no verdict, and a judge that fails, hangs or is stopped makes it
one that failed or was stopped; the loop that asks hears everything meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ajet.rollout.attempt_result import AttemptResult
from ajet.rollout.failure import classify, failed
from ajet.rollout.identity import Identity, workflow_task
from ajet.rollout.isolation.user_loop import UserLoop
from ajet.schema.episode import Failure, Verdict
from ajet.schema.errors import RewardFailure

if TYPE_CHECKING:
    from ajet.task_judge import Judge

RETRY_PAUSE = 0.2
"""Seconds before the second attempt; doubled before each further one."""


class Verdicts:
    """Asks one judge for all episodes."""

    def __init__(self, judge: Judge, settings: Any) -> None:
        """`settings` is the experiment's `ajet` section."""
        self._judge, self._rollout = judge, settings.rollout
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
        task = workflow_task(identity)
        for number in range(self._rollout.max_retries + 1):
            judging = asyncio.wrap_future(self._loop.submit(self._judge.verdict(task, played.output)))
            await first(judging, stopped, timeout=timeout)
            if not judging.done():
                judging.cancel()
                if stopped.done():
                    played.aborted = stopped.result()
                    return None
                message = f"the judge did not end within {timeout} seconds"
                played.failure = Failure("judge", "timeout", message, own=True)
                return None
            try:
                verdict = judging.result()
            except BaseException as problem:  # noqa: BLE001 - the border where a user's judge fails
                played.failure = classify(problem, "judge")
                if played.failure.boundary == "agent" and not isinstance(problem, RewardFailure):
                    played.failure.boundary = "judge"
            else:
                played.failure = None
                return verdict
            if not played.failure.retryable:
                break
            await asyncio.sleep(RETRY_PAUSE * 2**number)
        return None

    def close(self) -> None:
        """End the loop. Idempotent; does not wait."""
        self._loop.close()


def by_the_calls(played: AttemptResult) -> Failure | None:
    """What the captured calls say about how the attempt ended, against what it raised or returned."""
    capture, failure = played.capture, played.failure
    if capture is not None and capture.terminated is not None:
        return None
    if capture is not None and capture.calls and capture.calls[-1].finish == "error":
        last = capture.calls[-1]
        text = failure.traceback if failure else ""
        message = last.error or "the model call failed"
        return Failure("engine", "model_call", message, retryable=True, traceback=text, own=True)
    if failure is None and (capture is None or not capture.calls):
        refusals = capture.refusals if capture is not None else []
        if refusals:
            said = "; ".join(f"{message} ({code})" if code else message for code, message in refusals)
            return failed(
                "calls_refused", f"the workflow ended without a reply: its calls were refused: {said}"
            ).failure
        return failed("no_model_call", "the workflow ended without calling the model through its tuner").failure
    return failure


async def first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of them is done, or the time is over."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
