"""Marks tasks by a model's attempts: a task solved by all attempts, or by none, gives no learning signal.

Invariants: a mark names the model and the number of attempts, and does not change the task. Attempts that ajet itself
failed do not count, and fewer than two attempts give no mark. A task with different rewards has a learning signal,
whether or not a reward counts as a success.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from ajet.commands.evaluation.play import ModelScores
from ajet.record.attempts import AttemptRecord
from ajet.record.files import write_atomically
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.task_reader.rows import row_of

Mark = Literal["teaches", "everybody", "nobody", "unknown"]
KEY = "trial"
"""Key of a task's metadata."""
USELESS: tuple[Mark, ...] = ("everybody", "nobody")


def mark_tasks(tasks: Sequence[Task], scores: ModelScores, *, drop: bool = False) -> Iterator[Task]:
    """Yield copies of the tasks with their mark in `metadata.trial`: what a model's attempts say about each task.

    Args:
        scores: The model's attempts and scores.
        drop: True to omit tasks that all attempts solved, or none.
    """
    for task in tasks:
        attempts = scores.scores.by_task.get(task.task_id, [])
        mark = mark_task(attempts)
        if drop and mark in USELESS:
            continue
        rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
        summary = {
            "model": scores.model.label, "mark": mark, "attempts": len(attempts),
            "solved": sum(map(_is_solved, attempts)), "rewards": [min(rewards), max(rewards)] if rewards else [],
        }  # fmt: skip
        yield task.model_copy(update={"metadata": {**task.metadata, KEY: summary}})


def mark_task(attempts: Sequence[AttemptRecord]) -> Mark:
    """Return the mark of a task by a model's attempts at it: can training learn from the task?

    "teaches": rewards differ. "everybody": all attempts solved it. "nobody": no attempt did. "unknown": fewer than two
    attempts were decided. A failed attempt counts as unsolved.
    """
    decided = [attempt for attempt in attempts if attempt.reward is not None or attempt.failure]
    if len(decided) < 2:
        return "unknown"
    if len({attempt.reward for attempt in decided if attempt.reward is not None}) > 1:
        return "teaches"
    solved = sum(map(_is_solved, decided))
    return "everybody" if solved == len(decided) else "nobody" if solved == 0 else "teaches"


def write_marked(tasks: Sequence[Task], scores: ModelScores, file: Path, *, drop: bool = False) -> str:
    """Write the tasks with their marks as a JSON Lines file for `jsonl_dataset_file`.

    Args:
        drop: True to omit tasks that all attempts solved, or none.

    Returns:
        A sentence with the number of tasks for each mark.

    Raises:
        UserError: The file cannot be written.
    """
    counts = Counter(mark_task(scores.scores.by_task.get(task.task_id, [])) for task in tasks)
    lines = [json.dumps(row_of(task), ensure_ascii=False) + "\n" for task in mark_tasks(tasks, scores, drop=drop)]
    try:
        write_atomically(file, "".join(lines))
    except OSError as error:
        raise UserError(f"The file of tasks cannot be written: {error.strerror}.", where=f"--mark {file}") from error
    summary = f"every attempt solved {counts['everybody']} tasks, no attempt solved {counts['nobody']}"
    summary += f", {counts['unknown']} have too few scored attempts" if counts["unknown"] else ""
    return (
        f"{summary}; training can learn from {counts['teaches']} of {len(tasks)} tasks. {len(lines)} tasks are "
        f"in {file}"
    )


def _is_solved(attempt: AttemptRecord) -> bool:
    """Return True if the verdict is a success, or, from a judge of rewards only, if the reward is above 0."""
    if attempt.judged:
        return attempt.success
    return attempt.reward is not None and attempt.reward > 0
