"""Recorded attempts judged once more, by other judges than the one they were played with.

Invariant: nothing is played: a judge sees the task and what the workflow returned, as the record has it. An attempt
that failed has failed under every judge; one at which a judge fails counts as failed under that judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ajet.record.attempts import Attempt
from ajet.record.scores import Scores, worth_of_failure
from ajet.schema.errors import BoundaryError, JudgeFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, open_judge

if TYPE_CHECKING:
    from ajet.config import Experiment

AT_ONCE = 16
"""Attempts that a judge is asked about at the same time."""


def open_judges(experiment: Experiment, references: Sequence[str]) -> dict[str, Judge]:
    """By reference. Raises UserError for one that is no judge."""
    judges = {}
    for reference in references:
        settings = experiment.ajet.model_copy(deep=True)
        settings.task_judge.judge_type, settings.task_judge.judge_protocol = "customized_protocol", reference
        judges[reference] = open_judge(replace(experiment, ajet=settings))
    return judges


def scores_by_judge(
    judges: Mapping[str, Judge], attempts: Sequence[Attempt], tasks: Mapping[int, Task]
) -> dict[str, Scores]:
    """What the attempts come to under each; `tasks` by order."""
    found = {}
    for reference, judge in judges.items():
        again = asyncio.run(_judged(judge, attempts, tasks))
        found[reference] = Scores(again, worth_of_failure(again))
    return found


async def _judged(judge: Judge, attempts: Sequence[Attempt], tasks: Mapping[int, Task]) -> list[Attempt]:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(attempt: Attempt) -> Attempt:
        if attempt.failure or attempt.status != "completed":
            return attempt
        task = WorkflowTask(
            task=tasks[attempt.order],
            episode_uuid=attempt.uuid,
            task_id=attempt.task,
            task_batch_index=attempt.order,
            task_thread_index=attempt.repeat,
        )
        try:
            async with free:
                verdict = await judge.verdict(task, WorkflowOutput(metadata=attempt.output))
        except BoundaryError as problem:
            side = "judge" if isinstance(problem, JudgeFailure) else problem.boundary
            return replace(attempt, reward=None, success=False, judged=True, failure=f"{side}: {problem}", reason="")
        return replace(
            attempt,
            reward=verdict.reward,
            success=verdict.success is True,
            judged=verdict.success is not None,
            reason=verdict.reason,
        )

    return list(await asyncio.gather(*(one(attempt) for attempt in attempts)))
