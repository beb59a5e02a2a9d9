"""What a teacher says of an attempt's tokens, asked once the attempt has its verdict.

Invariant: it is asked about each sampled token that can be trained, in the context in which it was sampled, and what it
says is kept with the call: credit needs nobody else. An attempt about which it cannot be asked has failed: nothing of
it is trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ajet import context_tracker
from ajet.rollout.failure import classify, score_failure
from ajet.schema.call import Call, Floats
from ajet.schema.errors import TeacherFailure
from ajet.schema.timeline import Timeline

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.attempt import AttemptResult, Identity
    from ajet.schema.episode import Verdict


class Teacher(Protocol):
    """A model that gives log-probabilities of given tokens. Its ids are the policy's."""

    async def logprobs(self, lines: Sequence[Timeline]) -> list[Floats]:
        """[T] per line at temperature 1, read where its mask is. Raises TeacherFailure."""
        ...

    async def leave(self) -> None:
        """The loop that asked ends: close what is open there."""
        ...

    def close(self) -> None:
        """Close the teacher: nothing more is asked, and no loop has anything open."""
        ...


class Teaching:
    """Asks one teacher about all attempts that are trained on."""

    def __init__(self, teacher: Teacher, settings: AjetConfig) -> None:
        self._teacher, self._settings = teacher, settings

    async def ask(
        self, identity: Identity, played: AttemptResult, verdict: Verdict | None, stopped: asyncio.Future[str]
    ) -> None:
        """The calls in `played.capture` get what it says; or `played.failure` or `played.aborted` is set."""
        capture = played.capture
        if identity.split != "train" or capture is None or played.aborted:
            return
        if played.failure is not None:
            verdict = score_failure(played, self._settings.rollout.policy_failure_reward)
        if verdict is None or verdict.reward is None:
            return
        asked = asyncio.ensure_future(self._told(capture.calls))
        await asyncio.wait((asked, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            played.aborted = stopped.result()
            return
        try:
            played.capture = replace(capture, calls=asked.result())
        except TeacherFailure as problem:
            played.failure = classify(problem, "judge")

    async def _told(self, calls: Sequence[Call]) -> list[Call]:
        policy = self._settings.context_tracker.timeline_merging_policy
        lines, _ = context_tracker.timelines(calls, ignore_tools=policy.ignore_tools)
        longest = self._settings.data.max_prompt_length + self._settings.data.max_response_length
        lines, _ = context_tracker.cut_over_length(lines, longest)
        told = [np.full(call.response_ids.size, np.nan, np.float32) for call in calls]
        for line, found in zip(lines, await self._teacher.logprobs(lines), strict=True):
            for span in line.spans:
                call = calls[span.call]
                start = span.start - call.prefix - call.suffix_ids.size
                told[span.call][start : start + span.stop - span.start] = found[span.start : span.stop]
        return [replace(call, teacher=row) for call, row in zip(calls, told, strict=True)]
