"""Scores recorded attempts again with other judges.

Invariants: no attempt is run. A judge gets the task, the workflow's output and the tools' results from the record. An
attempt that failed in the run has failed under every judge, unless only the judge failed. An attempt counts as failed
under a judge that fails.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.schema.choices import is_reference
from ajet.record.attempts import AttemptRecord
from ajet.record.scores import Scores, failure_reward
from ajet.rollout.runtime import reduce_collections
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, JudgeFailure, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, open_judge
from ajet.task_judge.judge import JudgeInput

if TYPE_CHECKING:
    from ajet.config import Experiment

AT_ONCE = 16
"""Maximum number of attempts judged in parallel by one judge."""
YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class RejudgedAttempt:
    """An attempt with the verdict of another judge."""

    attempt: AttemptRecord
    verdict: Verdict | None = None
    """None if the judge was not called, or failed."""


OPTION = "--judge"
"""Command-line flag that names another judge."""


def open_judges(experiment: Experiment, references: Sequence[str]) -> dict[str, Judge]:
    """Open judges by reference, scorer's name or YAML. Raises UserError if a name is not a judge's."""
    return {reference: _open_judge(experiment, reference) for reference in references}


def _open_judge(experiment: Experiment, reference: str) -> Judge:
    from ajet.config import load_experiment

    if reference.endswith(YAML):
        judge = open_judge(load_experiment(Path(reference), backbone="debug"))
        if not judge.judges:
            raise UserError("The YAML sets no judge: its workflow sets the rewards itself.", where=reference)
        return judge
    settings = experiment.ajet.model_copy(deep=True)
    key = "judge_protocol" if is_reference(reference) else "scorer"
    settings.task_judge = settings.task_judge.replace_judges(**{key: reference})
    try:
        return open_judge(replace(experiment, ajet=settings))
    except UserError as error:
        written = re.compile(rf"\b(ajet\.)?task_judge\.{key}\b")  # a key not written by the user
        message, location = (written.sub(OPTION, text) for text in (error.what, error.where))
        raise UserError(message, where=location, expected=error.expected, do=error.do) from error


def score_by_judge(
    judges: Mapping[str, Judge], attempts: Sequence[AttemptRecord], tasks: Mapping[int, Task]
) -> dict[str, Scores]:
    """Return the attempts' scores under each judge.

    Args:
        tasks: each task by its position in the task order.
    """
    scores = {}
    for reference, judge in judges.items():
        rejudged = asyncio.run(rejudge_attempts(judge, [(attempt, tasks[attempt.order]) for attempt in attempts]))
        judge.let_go()
        after = [each.attempt for each in rejudged]
        scores[reference] = Scores(after, failure_reward(after))
    return scores


async def rejudge_attempts(judge: Judge, attempts: Sequence[tuple[AttemptRecord, Task]]) -> list[RejudgedAttempt]:
    """Score attempts one by one with another judge."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(attempt: AttemptRecord, task: Task) -> RejudgedAttempt:
        if not is_judgeable(attempt):
            return RejudgedAttempt(attempt)
        arrived = make_judge_input(judge, attempt, task)
        async with free:
            started = time.monotonic()
            try:
                verdict = await judge.verdict(arrived.task, arrived.output)
            except BoundaryError as problem:
                return record_failure(attempt, problem)
        return record_verdict(attempt, verdict, time.monotonic() - started)

    with reduce_collections():
        return list(await asyncio.gather(*(one(*each) for each in attempts)))


async def rejudge_group(judge: Judge, group: Sequence[tuple[AttemptRecord, Task]], seed: int) -> list[RejudgedAttempt]:
    """Rank the attempts at one task by a judge, in the order of the recorded run.

    Args:
        seed: the run's seed, which fixes the order shown to a model.
    """
    inputs = {index: make_judge_input(judge, *each) for index, each in enumerate(group) if is_judgeable(each[0])}
    if not inputs:
        return [RejudgedAttempt(attempt) for attempt, _ in group]
    by_repeat = {group[index][0].repeat: index for index in inputs}
    started = time.monotonic()
    try:
        places = {repeat: inputs[index] for repeat, index in by_repeat.items()}
        verdicts = await judge.compare(places, f"{seed}/{group[0][0].order}")
    except BoundaryError as problem:
        return [
            record_failure(attempt, problem) if index in inputs else RejudgedAttempt(attempt)
            for index, (attempt, _) in enumerate(group)
        ]
    seconds = time.monotonic() - started
    return [
        record_verdict(attempt, verdicts[attempt.repeat], seconds) if index in inputs else RejudgedAttempt(attempt)
        for index, (attempt, _) in enumerate(group)
    ]


def is_judgeable(attempt: AttemptRecord) -> bool:
    """True if the attempt has a recorded output that a judge can score."""
    return attempt.lacks_verdict or (not attempt.failure and attempt.status == "completed")


def make_judge_input(judge: Judge, attempt: AttemptRecord, of: Task) -> JudgeInput:
    """Return the judge's input. A ranking judge gets the last reply if the workflow states no answer."""
    task = WorkflowTask(
        task=of,
        episode_uuid=attempt.uuid,
        task_id=attempt.task,
        task_batch_index=attempt.order,
        task_thread_index=attempt.repeat,
        step=attempt.step,
        tool_results=list(attempt.tools),
    )
    output = dict(attempt.output)
    if judge.ranks is not None and attempt.last_reply is not None:
        output.setdefault("final_answer", attempt.last_reply)
    return JudgeInput(task, WorkflowOutput(metadata=output))


def record_failure(attempt: AttemptRecord, problem: BoundaryError) -> RejudgedAttempt:
    """Return the attempt as failed, because the judge failed."""
    side = "judge" if isinstance(problem, JudgeFailure) else problem.boundary
    nothing: dict[str, Any] = {"reward": None, "success": False, "reason": "", "scorer": "", "parts": {}, "spent": {}}
    return RejudgedAttempt(replace(attempt, judged=True, failure=f"{side}: {problem}", left_out=problem.own, **nothing))


def record_verdict(attempt: AttemptRecord, verdict: Verdict, seconds: float) -> RejudgedAttempt:
    """Return the attempt with a verdict. `seconds` is the time of judging."""
    after = replace(
        attempt,
        reward=verdict.reward,
        success=verdict.success is True,
        judged=verdict.success is not None,
        reason=verdict.reason,
        scorer=verdict.scorer,
        parts=dict(verdict.parts),
        spent={"waited": seconds, **verdict.metrics},
        status="completed",
        failure="",
        left_out=False,
    )
    return RejudgedAttempt(after, verdict)
