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
    """The tasks that both splits share. `trained` and `held_out`: how many were looked at."""

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
    """Each held-out task is counted once, by the strongest of the three."""
    tasks = {task.task_id: task for task in islice(held_out, MOST_HELD_OUT)}
    words_by_task = {name: prompt_words(task) for name, task in tasks.items()}
    runs: dict[tuple[str, ...], str] = {}
    common = Counter(run for words in words_by_task.values() for run in set(_word_runs(words)))
    for name, words in words_by_task.items():
        runs |= {run: name for run in _word_runs(words) if common[run] == 1}
    held_out_words = set(words_by_task.values())
    worlds: dict[tuple[str, ...], set[str]] = {}
    mixed, parts, count = set(), set(), 0
    for task in islice(trained, MOST_TRAINED):
        words = prompt_words(task)
        count += 1
        if words in held_out_words:
            worlds.setdefault(words, set()).add(_world_key(task))
        mixed.add(tuple(sorted(words)))
        parts |= {runs[run] for run in _word_runs(words) if run in runs} if runs else set()
    same = tuple(
        name
        for name, task in tasks.items()
        if words_by_task[name] and _is_trained(task, worlds.get(words_by_task[name], set()))
    )
    other = {name: words for name, words in words_by_task.items() if words and words not in worlds}
    mirrored = tuple(name for name, words in other.items() if tuple(sorted(words)) in mixed)
    in_part = tuple(name for name in other if name in parts and name not in mirrored)
    return TaskOverlap(same, mirrored, in_part, count, len(words_by_task))


def prompt_words(task: Task) -> tuple[str, ...]:
    """The words and signs that a task's user is shown asking, in lower case."""
    texts = [extract_text(message) for message in task.init_messages if message.get("role") == "user"]
    return tuple(_WORDS.findall(" ".join([*texts, task.main_query]).lower()))


def _is_trained(task: Task, worlds: set[str]) -> bool:
    """True if a trained task has the same words, and the same metadata if several trained tasks share the words."""
    return bool(worlds) and (len(worlds) == 1 or _world_key(task) in worlds)


def _world_key(task: Task) -> str:
    """Return the metadata of a task that decides its identity besides the words."""
    return repr(sorted((str(key), value) for key, value in task.metadata.items() if not _NAMES.fullmatch(str(key))))


def _word_runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1))
