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
    """A recorded attempt with the verdict of another judge than the one of its run."""

    attempt: AttemptRecord
    verdict: Verdict | None = None
    """None if the judge was not called, or failed."""


OPTION = "--judge"
"""Command-line flag that names another judge."""


def open_judges(experiment: Experiment, references: Sequence[str]) -> dict[str, Judge]:
    """Open the judges that the option --judge names, by a reference, a scorer's name or a YAML.

    Raises:
        UserError: A name is not a judge's.
    """
    return {reference: _open_judge(experiment, reference) for reference in references}


def _open_judge(experiment: Experiment, reference: str) -> Judge:
    """Open the judge of a reference, a scorer's name or a YAML. Errors name the option --judge."""
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
        key_pattern = re.compile(rf"\b(ajet\.)?task_judge\.{key}\b")  # a key not written by the user
        message, location = (key_pattern.sub(OPTION, text) for text in (error.what, error.where))
        raise UserError(message, where=location, expected=error.expected, do=error.do) from error


def score_by_judge(
    judges: Mapping[str, Judge], attempts: Sequence[AttemptRecord], tasks: Mapping[int, Task]
) -> dict[str, Scores]:
    """Return the scores of the recorded attempts under each judge.

    Args:
        tasks: Each task by its position in the task order.
    """
    scores = {}
    for reference, judge in judges.items():
        rejudged = asyncio.run(rejudge_attempts(judge, [(attempt, tasks[attempt.order]) for attempt in attempts]))
        judge.let_go()
        rejudged_attempts = [entry.attempt for entry in rejudged]
        scores[reference] = Scores(rejudged_attempts, failure_reward(rejudged_attempts))
    return scores


async def rejudge_attempts(judge: Judge, attempts: Sequence[tuple[AttemptRecord, Task]]) -> list[RejudgedAttempt]:
    """Return the attempts with the verdicts of another judge, which scores each attempt alone."""
    judge_slots = asyncio.Semaphore(AT_ONCE)

    async def rejudge(attempt: AttemptRecord, task: Task) -> RejudgedAttempt:
        """Return one attempt with the judge's verdict, or as failed if the judge fails."""
        if not is_judgeable(attempt):
            return RejudgedAttempt(attempt)
        judge_input = make_judge_input(judge, attempt, task)
        async with judge_slots:
            started = time.monotonic()
            try:
                verdict = await judge.verdict(judge_input.task, judge_input.output)
            except BoundaryError as error:
                return record_failure(attempt, error)
        return record_verdict(attempt, verdict, time.monotonic() - started)

    with reduce_collections():
        return list(await asyncio.gather(*(rejudge(*attempt_and_task) for attempt_and_task in attempts)))


async def rejudge_group(judge: Judge, group: Sequence[tuple[AttemptRecord, Task]], seed: int) -> list[RejudgedAttempt]:
    """Return the attempts at one task with the verdicts of a judge that ranks them.

    The attempts are shown to the judge in the order of the recorded run.

    Args:
        seed: The run's seed, which fixes the order shown to a model.
    """
    inputs = {index: make_judge_input(judge, *entry) for index, entry in enumerate(group) if is_judgeable(entry[0])}
    if not inputs:
        return [RejudgedAttempt(attempt) for attempt, _ in group]
    index_by_repeat = {group[index][0].repeat: index for index in inputs}
    started = time.monotonic()
    try:
        inputs_by_repeat = {repeat: inputs[index] for repeat, index in index_by_repeat.items()}
        verdicts = await judge.compare(inputs_by_repeat, f"{seed}/{group[0][0].order}")
    except BoundaryError as error:
        return [
            record_failure(attempt, error) if index in inputs else RejudgedAttempt(attempt)
            for index, (attempt, _) in enumerate(group)
        ]
    seconds = time.monotonic() - started
    return [
        record_verdict(attempt, verdicts[attempt.repeat], seconds) if index in inputs else RejudgedAttempt(attempt)
        for index, (attempt, _) in enumerate(group)
    ]


def is_judgeable(attempt: AttemptRecord) -> bool:
    """Return True if the attempt has a recorded output that a judge can score.

    An attempt that failed for another reason than the judge has none.
    """
    return attempt.lacks_verdict or (not attempt.failure and attempt.status == "completed")


def make_judge_input(judge: Judge, attempt: AttemptRecord, of: Task) -> JudgeInput:
    """Return what a judge gets of a recorded attempt: task, output and tool results.

    A judge that ranks attempts gets the last reply as answer if the workflow stated none.

    Args:
        of: The attempt's task.
    """
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
    """Return the attempt as failed without a reward, because the judge failed."""
    boundary = "judge" if isinstance(problem, JudgeFailure) else problem.boundary
    empty_verdict: dict[str, Any] = {
        "reward": None,
        "success": False,
        "reason": "",
        "scorer": "",
        "parts": {},
        "spent": {},
    }
    return RejudgedAttempt(
        replace(attempt, judged=True, failure=f"{boundary}: {problem}", left_out=problem.own, **empty_verdict)
    )


def record_verdict(attempt: AttemptRecord, verdict: Verdict, seconds: float) -> RejudgedAttempt:
    """Return the attempt with the verdict of another judge.

    Args:
        seconds: Time that the judging took.
    """
    rejudged = replace(
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
    return RejudgedAttempt(rejudged, verdict)
