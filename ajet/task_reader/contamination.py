"""Detects contamination: held-out tasks that are also trained on, exactly or nearly.

A held-out task is the *same* as a trained task with equal words; if trained tasks repeat the same words with other
metadata ("what does it cost?" with other prices), the metadata must be equal too. A task is *mirrored* if the words are
reordered (9 + 4 for 4 + 9), and known *in part* if both share a run of 13 words unique among held-out tasks (GPT-3,
arXiv 2005.14165, appendix C; shared runs are template text). Invariant: overlap is only reported; the user decides
about training.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ajet.schema.task import Task, extract_text

RUN = 13
"""Words of a run that two tasks do not share by chance."""
MOST_TRAINED, MOST_HELD_OUT = 50_000, 5_000
"""Maximum number of compared tasks; a few seconds of work."""
_NAMES = re.compile(r"(.*_)?(id|idx|index|uid|uuid|guid)|split|row|line", re.IGNORECASE)
"""Row fields that identify a row without being content."""
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class TaskOverlap:
    """The held-out tasks that are known from training. `trained` and `held_out` are the numbers of compared tasks."""

    same: tuple[str, ...]  # ids of held-out tasks
    mirrored: tuple[str, ...]
    in_part: tuple[str, ...]
    trained: int
    held_out: int

    @property
    def found(self) -> int:
        """Number of held-out tasks possibly known from training."""
        return len(self.same) + len(self.mirrored) + len(self.in_part)

    def words(self) -> str:
        """Return a sentence on the overlap; "" without overlap."""
        kinds = (("as they are", self.same), ("in another order", self.mirrored), ("in part", self.in_part))
        parts = [f"{len(ids)} {relation} (such as {ids[0]})" for relation, ids in kinds if ids]
        if not parts:
            return ""
        return f"{self.found} of {self.held_out} validation tasks are also training tasks: {', '.join(parts)}"


def find_overlap(trained: Sequence[Task], held_out: Sequence[Task]) -> TaskOverlap:
    """Return which held-out tasks are known from training: the same, in another word order, or in part.

    Each held-out task is counted once, as the first of these that applies.
    """
    tasks = {task.task_id: task for task in islice(held_out, MOST_HELD_OUT)}
    words_by_task = {task_id: prompt_words(task) for task_id, task in tasks.items()}
    task_by_run: dict[tuple[str, ...], str] = {}
    run_counts = Counter(run for words in words_by_task.values() for run in set(_word_runs(words)))
    # A run of words that several held-out tasks share is template text.
    for task_id, words in words_by_task.items():
        task_by_run |= {run: task_id for run in _word_runs(words) if run_counts[run] == 1}
    held_out_words = set(words_by_task.values())
    metadata_by_words: dict[tuple[str, ...], set[str]] = {}
    trained_sorted_words, tasks_sharing_run, trained_count = set(), set(), 0
    for task in islice(trained, MOST_TRAINED):
        words = prompt_words(task)
        trained_count += 1
        if words in held_out_words:
            metadata_by_words.setdefault(words, set()).add(_world_key(task))
        trained_sorted_words.add(tuple(sorted(words)))
        tasks_sharing_run |= (
            {task_by_run[run] for run in _word_runs(words) if run in task_by_run} if task_by_run else set()
        )
    same = tuple(
        task_id
        for task_id, task in tasks.items()
        if words_by_task[task_id] and _is_trained(task, metadata_by_words.get(words_by_task[task_id], set()))
    )
    words_of_other_tasks = {
        task_id: words for task_id, words in words_by_task.items() if words and words not in metadata_by_words
    }
    mirrored = tuple(
        task_id for task_id, words in words_of_other_tasks.items() if tuple(sorted(words)) in trained_sorted_words
    )
    in_part = tuple(
        task_id for task_id in words_of_other_tasks if task_id in tasks_sharing_run and task_id not in mirrored
    )
    return TaskOverlap(same, mirrored, in_part, trained_count, len(words_by_task))


def prompt_words(task: Task) -> tuple[str, ...]:
    """Return the words and punctuation marks of a task's user messages and question, in lower case."""
    texts = [extract_text(message) for message in task.init_messages if message.get("role") == "user"]
    return tuple(_WORDS.findall(" ".join([*texts, task.main_query]).lower()))


def _is_trained(task: Task, trained_metadata: set[str]) -> bool:
    """Return True if a trained task has the same words, and the same metadata if the trained tasks' metadata differ.

    Args:
        task: A held-out task.
        trained_metadata: The different metadata of the trained tasks with the same words.
    """
    return bool(trained_metadata) and (len(trained_metadata) == 1 or _world_key(task) in trained_metadata)


def _world_key(task: Task) -> str:
    """Return a task's metadata without ids and row numbers as one text, to compare tasks of equal words."""
    return repr(sorted((str(key), value) for key, value in task.metadata.items() if not _NAMES.fullmatch(str(key))))


def _word_runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield all runs of RUN consecutive words."""
    return (tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1))
