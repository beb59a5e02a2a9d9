"""Recorded attempts judged once more, by other judges than the one they were played with.

Invariant: nothing is played: a judge is told what it would have been told then, as the record has it: the task, what
the workflow returned, what tools answered. An attempt that failed has failed under every judge, but one at which only
its judge failed is asked about like any other; one at which a judge fails counts as failed under that judge.
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
from ajet.record.attempts import Attempt
from ajet.record.scores import Scores, worth_of_failure
from ajet.rollout.runtime import rare_collections
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, JudgeFailure, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, open_judge

if TYPE_CHECKING:
    from ajet.config import Experiment

AT_ONCE = 16
"""Attempts that a judge is asked about at the same time."""
YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Again:
    """An attempt as another judge has it."""

    attempt: Attempt
    verdict: Verdict | None = None
    """None: it was not asked, or it failed."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """An attempt that is to be compared with others."""

    task: WorkflowTask
    output: WorkflowOutput


OPTION = "--judge"
"""By which every command is told one."""


def open_judges(experiment: Experiment, references: Sequence[str]) -> dict[str, Judge]:
    """Judges by reference, by a scorer's name, or that of a YAML. Raises UserError for one that is no judge."""
    return {reference: _opened(experiment, reference) for reference in references}


def _opened(experiment: Experiment, reference: str) -> Judge:
    from ajet.config import load_experiment

    if reference.endswith(YAML):
        judge = open_judge(load_experiment(Path(reference), backbone="debug"))
        if not judge.judges:
            raise UserError("There is no judge in this YAML: its workflow sets the rewards.", where=reference)
        return judge
    settings = experiment.ajet.model_copy(deep=True)
    key = "judge_protocol" if is_reference(reference) else "scorer"
    settings.task_judge = settings.task_judge.deciding(**{key: reference})
    try:
        return open_judge(replace(experiment, ajet=settings))
    except UserError as error:
        written = re.compile(rf"\b(ajet\.)?task_judge\.{key}\b")  # by nobody
        what, where = (written.sub(OPTION, said) for said in (error.what, error.where))
        raise UserError(what, where=where, expected=error.expected, do=error.do) from error


def scores_by_judge(
    judges: Mapping[str, Judge], attempts: Sequence[Attempt], tasks: Mapping[int, Task]
) -> dict[str, Scores]:
    """The attempts' scores under each judge; `tasks` by order."""
    found = {}
    for reference, judge in judges.items():
        again = asyncio.run(judged_again(judge, [(attempt, tasks[attempt.order]) for attempt in attempts]))
        judge.let_go()
        after = [each.attempt for each in again]
        found[reference] = Scores(after, worth_of_failure(after))
    return found


async def judged_again(judge: Judge, played: Sequence[tuple[Attempt, Task]]) -> list[Again]:
    """Attempts, each with its task, each by itself."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(attempt: Attempt, task: Task) -> Again:
        if not judgeable(attempt):
            return Again(attempt)
        arrived = as_told(judge, attempt, task)
        async with free:
            began = time.monotonic()
            try:
                verdict = await judge.verdict(arrived.task, arrived.output)
            except BoundaryError as problem:
                return failed(attempt, problem)
        return decided(attempt, verdict, time.monotonic() - began)

    with rare_collections():
        return list(await asyncio.gather(*(one(*each) for each in played)))


async def ranked_again(judge: Judge, group: Sequence[tuple[Attempt, Task]], seed: int) -> list[Again]:
    """The attempts of one group beside each other, in the order in which they were shown then; `seed`: the run's."""
    asked = {at: as_told(judge, *each) for at, each in enumerate(group) if judgeable(each[0])}
    if not asked:
        return [Again(attempt) for attempt, _ in group]
    by_repeat = {group[at][0].repeat: at for at in asked}
    began = time.monotonic()
    try:
        places = {repeat: asked[at] for repeat, at in by_repeat.items()}
        verdicts = await judge.compare(places, f"{seed}/{group[0][0].order}")
    except BoundaryError as problem:
        return [failed(attempt, problem) if at in asked else Again(attempt) for at, (attempt, _) in enumerate(group)]
    seconds = time.monotonic() - began
    return [
        decided(attempt, verdicts[attempt.repeat], seconds) if at in asked else Again(attempt)
        for at, (attempt, _) in enumerate(group)
    ]


def judgeable(attempt: Attempt) -> bool:
    """Whether it came to something that a judge can be asked about."""
    return attempt.lacks_verdict or (not attempt.failure and attempt.status == "completed")


def as_told(judge: Judge, attempt: Attempt, of: Task) -> Arrived:
    """The output as the judge is told it: where models rank, what the model said last is the answer of a workflow that
    states none."""
    told = WorkflowTask(
        task=of,
        episode_uuid=attempt.uuid,
        task_id=attempt.task,
        task_batch_index=attempt.order,
        task_thread_index=attempt.repeat,
        step=attempt.step,
        tool_results=list(attempt.tools),
    )
    output = dict(attempt.output)
    if judge.ranks is not None and attempt.said is not None:
        output.setdefault("final_answer", attempt.said)
    return Arrived(told, WorkflowOutput(metadata=output))


def failed(attempt: Attempt, problem: BoundaryError) -> Again:
    """At which the judge failed."""
    side = "judge" if isinstance(problem, JudgeFailure) else problem.boundary
    nothing: dict[str, Any] = {"reward": None, "success": False, "reason": "", "scorer": "", "parts": {}, "spent": {}}
    return Again(replace(attempt, judged=True, failure=f"{side}: {problem}", left_out=problem.own, **nothing))


def decided(attempt: Attempt, verdict: Verdict, seconds: float) -> Again:
    """The attempt with this verdict, which took so long."""
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
    return Again(after, verdict)
