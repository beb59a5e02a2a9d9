"""Scorers by name, asked as a run asks them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ajet.config import Experiment
from ajet.config.schema.tasks import TaskJudgeConfig
from ajet.schema.episode import Verdict
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge, open_judge


@lru_cache(maxsize=1)
def _default_experiment() -> Experiment:
    return Experiment.from_dict({"ajet": {}}, base=Path(__file__).parent)


def open_scorer(name: str, **arguments: Any) -> Judge:
    judge = TaskJudgeConfig(**{"scorers": [{"name": name, "arguments": arguments}]})  # type: ignore[arg-type]
    experiment = _default_experiment()
    return open_judge(replace(experiment, ajet=experiment.ajet.model_copy(update={"task_judge": judge})))


def ask_scorer(judge: Judge, answer: str, row: dict[str, Any]) -> Verdict:
    task = WorkflowTask(task=Task(main_query="How many?", task_id="t", metadata=row))
    return asyncio.run(judge.verdict(task, WorkflowOutput(metadata={"final_answer": answer})))
