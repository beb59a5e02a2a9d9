"""Contamination: tasks that are held out and trained on nevertheless, as they are or nearly so.

A held-out task is *the same* as a trained one where its words are; where trained tasks themselves ask the same words of
several worlds ("what does it cost?" with other prices each time), what is known besides has to be the same, too. It is
*mirrored* where they are in another order (9 + 4 for 4 + 9); known *in part* where the two have a run of 13 words in
common that no other held-out task has (GPT-3, arXiv 2005.14165, appendix C; what many share is the wording of all
tasks, and no sign). Invariant: it is told and nothing is left out: whether a task may be trained on is the person's to
say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ajet.schema.messages import extract_text
from ajet.schema.task import Task

RUN = 13
"""Words of a run that two tasks do not share by chance."""
MOST_TRAINED, MOST_HELD_OUT = 50_000, 5_000
"""Tasks that are looked at, the first ones: a few seconds."""
_NAMES = re.compile(r"(.*_)?(id|idx|index|uid|uuid|guid)|split|row|line", re.IGNORECASE)
"""Fields of a row that say which one it is, and not what it asks."""
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class TaskOverlap:
    """The tasks that both splits share. `trained` and `held_out`: how many were looked at."""

    same: tuple[str, ...]
    """Ids of held-out tasks."""
    mirrored: tuple[str, ...]
    in_part: tuple[str, ...]
    trained: int
    held_out: int

    @property
    def found(self) -> int:
        """Held-out tasks that may be known from training."""
        return len(self.same) + len(self.mirrored) + len(self.in_part)

    def words(self) -> str:
        """A sentence on the overlap; "" where there is none."""
        kinds = (("as they are", self.same), ("in another order", self.mirrored), ("in part", self.in_part))
        parts = [f"{len(ids)} {how} (such as {ids[0]})" for how, ids in kinds if ids]
        if not parts:
            return ""
        return f"{self.found} of {self.held_out} validation tasks are also trained on: {', '.join(parts)}"


def find_overlap(trained: Sequence[Task], held_out: Sequence[Task]) -> TaskOverlap:
    """Each held-out task is counted once, by the strongest of the three."""
    tasks = {task.task_id: task for task in islice(held_out, MOST_HELD_OUT)}
    theirs = {name: prompt_words(task) for name, task in tasks.items()}
    runs: dict[tuple[str, ...], str] = {}
    common = Counter(run for words in theirs.values() for run in set(_word_runs(words)))
    for name, words in theirs.items():
        runs |= {run: name for run in _word_runs(words) if common[run] == 1}
    held_out_words = set(theirs.values())
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
        name for name, task in tasks.items() if theirs[name] and _is_trained(task, worlds.get(theirs[name], set()))
    )
    other = {name: words for name, words in theirs.items() if words and words not in worlds}
    mirrored = tuple(name for name, words in other.items() if tuple(sorted(words)) in mixed)
    in_part = tuple(name for name in other if name in parts and name not in mirrored)
    return TaskOverlap(same, mirrored, in_part, count, len(theirs))


def prompt_words(task: Task) -> tuple[str, ...]:
    """The words and signs that a task's user is shown asking, in lower case."""
    texts = [extract_text(message) for message in task.init_messages if message.get("role") == "user"]
    return tuple(_WORDS.findall(" ".join([*texts, task.main_query]).lower()))


def _is_trained(task: Task, worlds: set[str]) -> bool:
    """Whether it is one of the trained tasks with its words, whose `worlds` these are."""
    return bool(worlds) and (len(worlds) == 1 or _world_key(task) in worlds)


def _world_key(task: Task) -> str:
    """The part of a task beside its words that decides what it is."""
    return repr(sorted((str(key), value) for key, value in task.metadata.items() if not _NAMES.fullmatch(str(key))))


def _word_runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1))
