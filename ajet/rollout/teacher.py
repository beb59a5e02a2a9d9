"""A teacher's log-probabilities of an attempt's tokens, requested once the attempt has a verdict.

Invariant: each trainable sampled token is scored in the context of the sampling, and the log-probabilities are stored
with the call: credit needs no teacher. If the teacher cannot score an attempt, the attempt has failed and trains no
tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ajet.rollout.episode import cut_timelines
from ajet.rollout.failure import classify_exception, score_failure
from ajet.rollout.runtime import wait_first
from ajet.schema.call import Call, Floats
from ajet.schema.episode import Timeline
from ajet.schema.errors import TeacherFailure

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.attempt import AttemptResult, Identity
    from ajet.schema.episode import Verdict


class TeacherModel(Protocol):
    """A model for log-probabilities of tokens. The token ids are the policy's."""

    async def logprobs(self, lines: Sequence[Timeline]) -> list[Floats]:
        """Return the log-probabilities of each timeline's tokens at temperature 1, an array [T] per timeline.

        Only positions in the timeline's mask are used. Raises TeacherFailure.
        """
        ...

    async def leave(self) -> None:
        """Close the connections of the calling event loop, which is about to end."""
        ...

    def close(self) -> None:
        """Close the teacher, after every loop has called `leave`."""
        ...


class TeacherScorer:
    """Stores a teacher's log-probabilities with each trained attempt."""

    def __init__(self, teacher: TeacherModel, settings: AjetConfig) -> None:
        self._teacher, self._settings = teacher, settings

    async def score_attempt(
        self, identity: Identity, result: AttemptResult, verdict: Verdict | None, stop_signal: asyncio.Future[str]
    ) -> None:
        """Store the teacher's log-probabilities in the calls of `result.capture`.

        If that fails or is stopped, `result.failure` or `result.aborted` is set. Only attempts of the training split
        with a reward are scored.
        """
        capture = result.capture
        if identity.split != "train" or capture is None or result.aborted:
            return
        if result.failure is not None:
            verdict = score_failure(result.failure, capture, self._settings.rollout.policy_failure_reward)
        if verdict is None or verdict.reward is None:
            return
        scoring = asyncio.ensure_future(self._score_calls(capture.calls))
        await wait_first(scoring, stop_signal)
        if not scoring.done():
            scoring.cancel()
            result.aborted = stop_signal.result()
            return
        try:
            result.capture = replace(capture, calls=scoring.result())
        except TeacherFailure as problem:
            result.failure = classify_exception(problem, "judge")

    async def _score_calls(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls with a teacher log-probability for each sampled token, NaN where no timeline trains the
        token.

        Positions in a timeline count the prompt's tokens too (prefix and suffix), which are subtracted for the reply.
        """
        trained_timelines, _ = cut_timelines(calls, self._settings)
        teacher_logprobs = [np.full(call.response_ids.size, np.nan, np.float32) for call in calls]
        for timeline, logprobs in zip(trained_timelines, await self._teacher.logprobs(trained_timelines), strict=True):
            for span in timeline.spans:
                call = calls[span.call]
                start = span.start - call.prefix - call.suffix_ids.size
                teacher_logprobs[span.call][start : start + span.stop - span.start] = logprobs[span.start : span.stop]
        return [
            replace(call, teacher=logprobs_of_call)
            for call, logprobs_of_call in zip(calls, teacher_logprobs, strict=True)
        ]
