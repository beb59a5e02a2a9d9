"""Which tasks a trial play says teach nothing: solved by every attempt, or by none.

Invariant: a mark says what was seen, by whom and in how many attempts, and leaves the task as it is; attempts that ajet
itself failed at say nothing, and fewer than two of a task mark nothing. Where rewards differ, there is something to
learn, whether or not one of them counts as a success.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from ajet.commands.evaluation.play import Evaluated
from ajet.record.attempts import Attempt
from ajet.record.files import write_atomically
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.task_reader.rows import row_of

Mark = Literal["teaches", "everybody", "nobody", "unknown"]
KEY = "trial"
"""Of a task's metadata."""
USELESS: tuple[Mark, ...] = ("everybody", "nobody")


def marked(tasks: Sequence[Task], by: Evaluated, *, drop: bool = False) -> Iterator[Task]:
    """Each task with what its attempts came to, in `metadata.trial`. `drop`: without those that teach nothing."""
    for task in tasks:
        attempts = by.scores.by_task.get(task.task_id, [])
        mark = mark_of(attempts)
        if drop and mark in USELESS:
            continue
        rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
        told = {
            "model": by.model.label, "mark": mark, "attempts": len(attempts),
            "solved": sum(map(_solved, attempts)), "rewards": [min(rewards), max(rewards)] if rewards else [],
        }  # fmt: skip
        yield task.model_copy(update={"metadata": {**task.metadata, KEY: told}})


def mark_of(attempts: Sequence[Attempt]) -> Mark:
    """The mark of a task, by the attempts that count. One that failed is as one that solved nothing."""
    known = [attempt for attempt in attempts if attempt.reward is not None or attempt.failure]
    if len(known) < 2:
        return "unknown"
    if len({attempt.reward for attempt in known if attempt.reward is not None}) > 1:
        return "teaches"
    solved = sum(map(_solved, known))
    return "everybody" if solved == len(known) else "nobody" if solved == 0 else "teaches"


def write_marked(tasks: Sequence[Task], by: Evaluated, file: Path, *, drop: bool = False) -> str:
    """Write the tasks as JSON lines that `jsonl_dataset_file` reads. Answers what was found, in words. Raises
    UserError."""
    counts = Counter(mark_of(by.scores.by_task.get(task.task_id, [])) for task in tasks)
    lines = [json.dumps(row_of(task), ensure_ascii=False) + "\n" for task in marked(tasks, by, drop=drop)]
    try:
        write_atomically(file, "".join(lines))
    except OSError as error:
        raise UserError(f"The tasks cannot be written: {error.strerror}.", where=f"--mark {file}") from error
    told = f"{counts['everybody']} tasks are solved by every attempt, {counts['nobody']} by none"
    told += f", {counts['unknown']} have too few attempts with a verdict" if counts["unknown"] else ""
    return f"{told}; {counts['teaches']} of {len(tasks)} can teach. {len(lines)} are in {file}"


def _solved(attempt: Attempt) -> bool:
    """A verdict's word, or, of a judge that gives numbers alone, a reward above 0."""
    if attempt.judged:
        return attempt.success
    return attempt.reward is not None and attempt.reward > 0
